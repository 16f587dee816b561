"""`finpod render`: writes a clip of a trained locomotion agent."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from finpod.cli import console, options, outputs
from finpod.envs.locomotion import NAMES
from finpod.errors import InputError, require_number
from finpod.files import TRAINED, require_free_file, write_bytes


def render(
    name: Annotated[str, Argument(metavar="NAME", help="A locomotion run: its folder, or its name in strategies/.")],
    out: Annotated[Path | None, Option(help="A .gif file; default: reports/NAME.gif, NAME-N.gif for agent N.")] = None,
    agent: Annotated[int, Option(help="Number of the saved agent, 0 for the best.")] = 0,
    seconds: Annotated[float, Option(help="Largest number of simulated seconds to show.")] = 10.0,
    seed: Annotated[int, Option(help="Seed of the initial state.")] = 0,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a clip of one episode of a trained locomotion agent as a GIF."""
    from finpod.envs.locomotion.render import draw, gif, play, require_gif
    from finpod.locomotion import task_of
    from finpod.rl.evaluate import mean_action
    from finpod.tournament.trained_run import TrainedRun

    require_number("seconds", seconds, 1e-12)
    place = next((place for place in (Path(name), Path("strategies") / name) if (place / TRAINED).is_file()), None)
    if place is None:
        raise InputError(
            f"{name} is not a finished run of a locomotion task; give a folder that finpod train wrote for such a task"
        )
    run = TrainedRun(place)
    target = out or outputs.REPORTS / f"{outputs.plain_word(run.name)}{f'-{agent}' if agent else ''}.gif"
    require_gif(target)
    require_free_file(target, overwrite)
    spec = run.checkpoint(agent).task_spec
    if not (spec["task"] in NAMES and {"variant", "engine"} <= spec.keys()):
        raise InputError(
            f"{run.name} has a task of your own, {spec['task']}; finpod renders only its own {', '.join(NAMES)}"
        )
    with console.progress("rendering"):
        task, policy = task_of(spec, threads=1), run.load(agent)
        episode = play(task.env(1, seed, policy.log_std.device), partial(mean_action, policy))
        film = draw(task.definition, episode, seconds)
        write_bytes(target, gif(film))
    number = run.provenance["members"][agent]["agent"]
    shown = min(len(film.frames) * film.interval, episode.seconds)
    if as_json:
        facts = {"task": task.name, "variant": task.variant, "agent": number, "seed": seed, "return": episode.total,
                 "steps": episode.steps, "seconds": episode.seconds, "shown": shown, "fell": episode.fell}  # fmt: skip
        console.show_json(facts | {"path": str(target)})
        return
    length = f"{episode.steps:,} steps ({episode.seconds:.1f} s){', ended by a fall' if episode.fell else ''}"
    part = "" if shown >= episode.seconds else f"; the first {shown:.1f} s are shown"
    print(f"{task.definition.title}\nagent {number}: return {episode.total:,.1f} in {length}{part}\n{target}")
