"""What the scripts that record pictures share: the program that is recorded, and the file that it becomes."""

import getpass, json, socket, subprocess, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def program(package, name):
    """The program that was given, or the one of this clone."""
    if len(sys.argv) > 1:
        return Path(sys.argv[1]).resolve(strict=True)
    build = ["cargo", "build", "--locked", "-p", package, "--bin", name, "--message-format=json"]
    lines = subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    made = [json.loads(line).get("executable") for line in lines]
    return Path(next(path for path in made if path))


def keep(picture, svg, folder, what):
    """Writes the picture, which shows nothing of this machine."""
    for private in [folder, str(Path.home()), str(ROOT), socket.gethostname(), getpass.getuser() + "@"]:
        assert private not in svg, f"the picture shows {private}"
    assert len(svg) < 60_000, f"{len(svg)} bytes"
    picture.write_text(svg)
    print(f"{picture.relative_to(ROOT)}: {what} in {len(svg)} bytes")
