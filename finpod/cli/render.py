"""`finpod render`: a clip of a trained agent."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finpod.cli import console, options, outputs
from finpod.cli.leaderboard import STRATEGIES, place_of
from finpod.errors import InputError, did_you_mean
from finpod.files import ENSEMBLE, TRAINED, UNFINISHED, WALK_FORWARD, require_free_file, write_bytes

if TYPE_CHECKING:
    from finpod.tournament.trained_run import TrainedRun


def render(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A run of a locomotion task: its folder, or its name in strategies/.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="A .gif or .mp4 file; by default reports/NAME.gif, or NAME-N.gif for agent N.")
    ] = None,
    agent: Annotated[int, typer.Option(help="Number of the saved agent, 0 for the best.")] = 0,
    seconds: Annotated[float, typer.Option(help="Simulated seconds to show at most, from the start.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Seed of the first state.")] = 0,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a clip of one episode of a trained locomotion agent, as GIF or MP4."""
    from finpod.envs.locomotion.render import encode, require_kind
    from finpod.report.clip import record

    run = _run_of(name)
    target = out or outputs.REPORTS / f"{outputs.plain_word(run.name)}{f'-{agent}' if agent else ''}.gif"
    kind = require_kind(target)
    require_free_file(target, overwrite)
    with console.progress("rendering"):
        clip = record(run, agent, seconds=seconds, seed=seed)
        write_bytes(target, encode(clip.film, kind))
    if as_json:
        episode = clip.episode
        facts = {"task": clip.task.name, "variant": clip.task.variant, "title": clip.task.definition.title,
                 "agent": clip.agent, "seed": seed, "return": episode.total, "steps": episode.steps,
                 "seconds": episode.seconds, "shown": clip.shown, "fell": episode.fell, "path": str(target)}  # fmt: skip
        console.show_json(facts)
        return
    print(f"{clip.task.definition.title}\nagent {clip.agent}: {clip}\n{target}")


def _run_of(name: str) -> TrainedRun:
    """The finished run of a name. Raises InputError if it is missing, unfinished, or of stocks."""
    from finpod.tournament.trained_run import TrainedRun

    place = Path(place_of(name))
    if (place / TRAINED).is_file():
        return TrainedRun(place)
    if (place / ENSEMBLE).is_file() or (place / WALK_FORWARD).is_file():
        raise InputError(f"{place} is of stocks, and has no physics to render; give a run of a locomotion task")
    if Path(f"{place}{UNFINISHED}").is_dir():
        resume = shlex.join(["finpod", "train", "--resume", name])
        raise InputError(f"{place} is not finished, and no agent is kept yet; finish it with {resume}")
    if place.exists():
        raise InputError(f"{place} holds no trained run; give a folder that finpod train wrote")
    folders: list[Path] = []
    for parent in dict.fromkeys((place.parent, STRATEGIES)):
        with suppress(OSError):  # no suggestions from a folder that is missing or cannot be read
            folders += [path.parent for path in sorted(parent.glob(f"*/{TRAINED}"))]
    spellings = {str(path): str(path) for path in folders} | {path.name: str(path) for path in folders}
    hint = did_you_mean(name, spellings, "give a folder that finpod train wrote")
    raise InputError(f"there is no trained run {name!r}; {hint}")
