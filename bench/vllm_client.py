"""vLLM as a candidate: the other end of vllm_peer.py."""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from .turns import Candidate, Unavailable
from .workloads import Workload


class Vllm:
    """A vLLM that stays loaded in a process of its own; between its turns it waits for a line."""

    def __init__(
        self, python: str, model: str, dtype: str, room: int, max_num_seqs: int, budget: int
    ) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        # -P: the folder of the script is no place to import from.
        self._process = subprocess.Popen(
            [python, "-P", str(Path(__file__).with_name("vllm_peer.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        settings = {
            "model": model, "dtype": dtype, "max_model_len": room, "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": budget,
        }  # fmt: skip
        self.version = self._ask(settings)["version"]

    def run_all(self, workload: Workload) -> Candidate:
        """Generate all of a workload."""
        return lambda: self._order("run", workload)

    def begin(self, workload: Workload) -> None:
        """Take requests and compute their prompts."""
        self._order("end")
        self._order("begin", workload)

    def step(self) -> float:
        """One token for each."""
        return self._order("step")

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _order(self, order: str, workload: Workload | None = None) -> float:
        given: dict[str, Any] = {"order": order}
        if workload:
            given |= {"prompts": workload.prompts, "lengths": workload.lengths}
        return float(self._ask(given)["seconds"])

    def _ask(self, line: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(line), file=self._process.stdin, flush=True)
            reply = self._process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if not reply:
            self._log.seek(0)
            said = self._log.read().strip().splitlines() or ["nothing"]
            raise Unavailable(
                f"vLLM has ended with {self._process.wait()}; the last it said: {said[-1]}"
            )
        answer: dict[str, Any] = json.loads(reply)
        return answer
