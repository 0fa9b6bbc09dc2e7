"""``build --print``: the Dockerfile and the whole argument list, for those who build by hand."""

from __future__ import annotations

import shlex
from typing import Any

from doctor.finding import Finding
from doctor.host import Host
from doctor.image import builder, context, engine, pins
from doctor.image.build import BuildOptions, dockerfile, make_plan, trusted
from doctor.image.builder import Settings
from doctor.image.engine import Engine
from doctor.snapshot import Snapshot


def printed(options: BuildOptions, s: Snapshot, host: Host) -> tuple[str, dict[str, Any]]:
    """The text, and the same as an object. The context is ".": a folder that holds what the text names."""
    found = engine.find(host, options.engine)
    chosen = Engine("docker", "docker", "", "built in") if isinstance(found, Finding) else found
    # no engine is asked: a base without --target therefore needs its target named
    plan = make_plan(options, s, host, None, lambda _: None)
    text = dockerfile(plan.target)
    ca, note = trusted(options.ca, host.env, offline=options.wheels is not None)
    settings = Settings(ca, options.network, options.no_cache, builder.proxies(host.env))
    command = builder.command(plan, chosen, ".", text, settings)
    parts = ["docker", "doctor", *context.FILES]
    notes = [*plan.notes, *(f.summary for f in plan.refusals), *([note] if note else [])]
    if options.wheels is not None:
        wheels = context.wheels_for(options.wheels, plan.target, pins.load().root)
        notes.append(f"{len(wheels.files)} wheels of {options.wheels} belong into docker/wheels")
    lines = [
        f"# {plan.target.dockerfile}",
        text.rstrip("\n"),
        "",
        f"# {plan.target.name}: {plan.choices[0].why}",
        *(f"# note: {n}" for n in notes),
        f"# in a folder with {', '.join(parts)}:",
        shlex.join(builder.shown(command)),
    ]
    document = {
        "dockerfile": plan.target.dockerfile,
        "text": text,
        "environment": dict(command.env),
        "command": list(command.argv),
        "context": parts,
        "notes": notes,
    }
    return "\n".join(lines) + "\n", document
