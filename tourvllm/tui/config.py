"""The user's configuration file: theme, signs and keys. What is wrong in it is told in one sentence."""

import codecs
import locale
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from platformdirs import user_config_path
from textual.keys import Keys, _character_to_key

from . import theme
from .keys import KEYS

MODIFIERS = {"ctrl", "shift", "alt", "super", "hyper", "meta"}
MAX_BYTES = 2**16


@dataclass
class Config:
    """The settings. `problem` is what to tell the user about the file."""

    theme: str = theme.NAMES[0]
    ascii: bool = False
    keys: dict[str, str] = field(default_factory=dict)
    problem: str = ""


def config_path() -> Path:
    """The configuration file of this user."""
    return user_config_path("tourvllm") / "config.toml"


def read_config(path: Path | None = None) -> Config:
    """Read the file; without one all is as it ships. Signs are ASCII where the locale has no others."""
    path = path or config_path()
    config = Config(ascii=not _terminal_has_unicode())
    try:
        with path.open("rb") as file:
            table = tomllib.loads(file.read(MAX_BYTES).decode("utf-8-sig"))  # a BOM is fine
    except FileNotFoundError:
        return config
    except (OSError, ValueError, RecursionError) as error:
        config.problem = f"{path} cannot be read: {' '.join(str(error).split())}"
        return config
    problems = [
        problem for problem in (_take(config, *entry) for entry in table.items()) if problem
    ]
    if problems:
        config.problem = f"{path}: {problems[0]}"
    return config


def _take(config: Config, key: str, value: Any) -> str:
    """Take in one setting; returns what is wrong with it."""
    if key == "theme":
        if value not in theme.NAMES:
            return f"theme: there is no theme {value!r}, there are {', '.join(theme.NAMES)}"
        config.theme = value
    elif key == "ascii":
        if not isinstance(value, bool):
            return f"ascii: must be true or false, not {value!r}"
        config.ascii = value
    elif key == "keys":
        if not isinstance(value, dict):
            return 'keys: must be a table, such as next_step = "n,right"'
        return _take_keys(config, value)
    else:
        return f"there is no setting {key}: there are theme, ascii and [keys]"
    return ""


def _take_keys(config: Config, table: dict[str, Any]) -> str:
    """Take in the good entries of [keys]; returns what is wrong with the first bad one."""
    problem = ""
    for action, keys in table.items():
        if action not in KEYS:
            found = f"keys: there is no action {action} (docs/keys.md lists them)"
        elif not isinstance(keys, str):
            found = f'keys.{action}: must be a text such as "n,right"'
        else:
            named = [_key_name(key.strip()) for key in _split(keys)]
            found = "" if all(named) else f"keys.{action}: {keys!r} names a key that is unknown"
            if not found:
                config.keys[action] = ",".join(name for name in named if name)
        problem = problem or found
    return problem or _taken_twice(config)


def _taken_twice(config: Config) -> str:
    """A key of the file that another action has too is not taken. The first one is told."""
    problem = ""
    for action in list(config.keys):
        others = {
            key: other
            for other in KEYS
            if other != action
            for key in config.keys.get(other, KEYS[other].keys).split(",")
        }
        taken = [key for key in config.keys[action].split(",") if key in others]
        if taken:
            del config.keys[action]
            problem = (
                problem or f"keys.{action}: {taken[0]} is the key of {others[taken[0]]} already"
            )
    return problem


def _split(keys: str) -> list[str]:
    """The keys of a list; a comma alone is a key."""
    return [keys] if keys == "," else keys.split(",")


def _key_name(key: str) -> str | None:
    """Textual's name of a key that is written as its character or its name; None if there is no such key."""
    *modifiers, last = key.split("+") if len(key) > 1 else [key]
    if not set(modifiers) <= MODIFIERS:
        return None
    if len(last) == 1 and last.isprintable():
        last = _character_to_key(last)
    elif last.lower() not in _named_keys():
        return None
    else:
        last = last.lower()
    return "+".join([*modifiers, last])


@cache
def _named_keys() -> set[str]:
    """Textual's names of keys: of those without a character, and of the characters that have a name."""
    signs = {_character_to_key(chr(code)) for code in range(32, 127)}
    return {item.value.rpartition("+")[2] for item in Keys} | {"space", *signs}


def _terminal_has_unicode() -> bool:
    try:
        return codecs.lookup(locale.getencoding()).name == "utf-8"
    except LookupError:
        return False
