"""Complete Hydra overrides in the shell: groups, their choices, and keys."""

import typer


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return what may stand in place of the incomplete argument of a command that takes overrides.

    Bash splits arguments at "=", as in `workload`, `=`, `res`: there only the part after it is completed.
    """
    from ..config.error_messages import choices_of_groups

    previous: list[str] = list(ctx.params.get("overrides") or ())  # a tuple before Typer 0.29
    if previous[-1:] == ["="]:
        name, prefix, value = previous[-2], "", incomplete
    elif previous and not incomplete and previous[-1] in choices_of_groups():  # the incomplete argument was "="
        name, prefix, value = previous[-1], "", ""
    else:
        name, equals, value = incomplete.partition("=")
        if not equals:
            return _complete_name(name)
        prefix = f"{name}="
    others = value[: value.rfind(",") + 1]  # of a sweep
    words = [f"{prefix}{others}{choice}" for choice in choices_of_groups().get(name, [])]
    return [word for word in words if word.startswith(prefix + value)]


def _complete_name(start: str) -> list[str]:
    """Return the groups and keys that begin with `start`; if there is only one, its values behind "="."""
    from ..config.error_messages import choices_of_groups
    from ..config.key_help import list_keys

    groups = choices_of_groups()
    names = [name for name in [*groups, *list_keys()] if name.startswith(start)]
    if len(names) != 1:
        return [f"{name}=" for name in names]
    return [f"{names[0]}={choice}" for choice in groups.get(names[0], ["", "VALUE"])]
