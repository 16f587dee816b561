"""`finpod render`: writes a clip of a trained agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from finpod.cli import console, options, outputs
from finpod.cli.leaderboard import place_of
from finpod.errors import InputError
from finpod.files import TRAINED, require_free_file, write_bytes


def render(
    name: Annotated[str, Argument(metavar="NAME", help="A locomotion run: its folder, or its name in strategies/.")],
    out: Annotated[Path | None, Option(help="A .gif file; by default reports/NAME.gif or NAME-N.gif.")] = None,
    agent: Annotated[int, Option(help="Number of the saved agent, 0 for the best.")] = 0,
    seconds: Annotated[float, Option(help="Simulated seconds to show at most, from the start.")] = 10.0,
    seed: Annotated[int, Option(help="Seed of the first state.")] = 0,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a clip of one episode of a trained locomotion agent as a GIF."""
    from finpod.envs.locomotion.render import gif, require_gif
    from finpod.report.clip import record
    from finpod.tournament.trained_run import TrainedRun

    place = Path(place_of(name))
    if not (place / TRAINED).is_file():
        raise InputError(f"{place} is not a finished run of a locomotion task; give a folder that finpod train wrote")
    run = TrainedRun(place)
    target = out or outputs.REPORTS / f"{outputs.plain_word(run.name)}{f'-{agent}' if agent else ''}.gif"
    require_gif(target)
    require_free_file(target, overwrite)
    with console.progress("rendering"):
        clip = record(run, agent, seconds=seconds, seed=seed)
        write_bytes(target, gif(clip.film))
    if as_json:
        task, episode = clip.task, clip.episode
        facts = {"task": task.name, "variant": task.variant, "agent": clip.agent, "seed": seed, "return": episode.total,
                 "steps": episode.steps, "seconds": episode.seconds, "shown": clip.shown, "fell": episode.fell}  # fmt: skip
        console.show_json(facts | {"path": str(target)})
    else:
        print(f"{clip.task.definition.title}\nagent {clip.agent}: {clip}\n{target}")
