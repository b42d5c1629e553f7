"""The walkthroughs that ship with the package, as YAML."""
