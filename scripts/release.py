"""
Make a release: version, changelog, wheel, source archive, bill of materials, image, checksums.

    .venv/bin/python -m scripts.release 0.2.0

Run it on a clean checkout. Everything is written to dist/0.2.0. Then the new version and the changelog are committed
and tagged, but not pushed. If a step fails, nothing is changed. Without Docker's buildx there is no image, and the
command to build it is printed.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PLATFORMS: Final = "linux/amd64,linux/arm64"
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_PROJECT_VERSION: Final = re.compile(r'(?m)^(name = "voice-gateway"\nversion = )"([^"]+)"')


class ReleaseError(Exception):
    """The release can't be made; nothing was changed."""


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.release", description="Make a release in dist/VERSION.")
    parser.add_argument("version", help="such as 0.2.0")
    parser.add_argument("--no-image", action="store_true", help="build no image, even if there is Docker's buildx")
    options = parser.parse_args(arguments)
    try:
        return release(root, options.version, has_buildx=not options.no_image and has_buildx())
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 2


def has_buildx() -> bool:
    """Docker is often installed without it."""
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "buildx", "version"], capture_output=True).returncode == 0


def release(root: Path, version: str, *, has_buildx: bool) -> int:
    files = {name: (root / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "uv.lock", "CHANGELOG.md")}
    check_version(version, current_version(files["pyproject.toml"]))
    if _run(root, "git", "status", "--porcelain"):
        raise ReleaseError("there are uncommitted changes; commit or remove them first")
    if _run(root, "git", "tag", "--list", f"v{version}"):
        raise ReleaseError(f"the tag v{version} exists already")
    if (root / "dist" / version).exists():
        raise ReleaseError(f"the folder dist/{version} exists already; remove it first")
    files["CHANGELOG.md"] = released_changelog(files["CHANGELOG.md"], version, date.today())
    for name in ("pyproject.toml", "uv.lock"):
        files[name] = with_version(files[name], version)
    before = {name: (root / name).read_bytes() for name in files}
    folder = root / "dist" / version
    try:
        for name, text in files.items():
            (root / name).write_text(text, encoding="utf-8")
        _build(root, folder, version, has_buildx=has_buildx)
        _run(root, "git", "commit", "--quiet", "--all", "--message", f"Release {version}")
    except BaseException:  # also Ctrl-C: an image takes minutes
        for name, content in before.items():
            (root / name).write_bytes(content)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _run(root, "git", "tag", "--annotate", f"v{version}", "--message", f"Version {version}")
    print(f"{folder}: check the files, then: git push --follow-tags", file=sys.stderr)
    return 0


def _build(root: Path, folder: Path, version: str, *, has_buildx: bool) -> None:
    folder.mkdir(parents=True)
    print("wheel and source archive", file=sys.stderr)
    _run(root, "uv", "build", "--quiet", "--out-dir", str(folder))
    (folder / ".gitignore").unlink(missing_ok=True)  # uv writes one
    print("bill of materials", file=sys.stderr)
    (folder / f"voice-gateway-{version}.cdx.json").write_text(_run(root, "scripts/sbom"), encoding="utf-8")
    image = ["docker", "buildx", "build", "--platform", PLATFORMS, "--tag", f"voice-gateway:{version}"]
    image += ["--output", f"type=oci,dest={folder}/voice-gateway-{version}.oci.tar", "."]
    if has_buildx:
        print("image", file=sys.stderr)
        _run(root, *image)
    else:
        print(f"no image: where Docker has buildx, build it with\n  {' '.join(image)}", file=sys.stderr)
    (folder / "SHA256SUMS").write_text(checksums(folder), encoding="utf-8")


def current_version(project: str) -> str:
    found = _PROJECT_VERSION.search(project)
    if found is None:
        raise ReleaseError("pyproject.toml has no version")
    return found[2]


def check_version(version: str, current: str) -> None:
    """Raises ReleaseError unless `version` follows `current`. The first release may have the version that is there."""
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"{version!r} is not a version; give three numbers, such as 0.2.0")
    numbers, before = (tuple(map(int, text.split("."))) for text in (version, current))
    if numbers < before:
        raise ReleaseError(f"{version} is older than {current}")


def with_version(text: str, version: str) -> str:
    """pyproject.toml or uv.lock with another version of the project."""
    return _PROJECT_VERSION.sub(rf'\1"{version}"', text, count=1)


def released_changelog(changelog: str, version: str, day: date) -> str:
    """What is under *Unreleased* becomes the section of this version."""
    heading = "## Unreleased\n"
    before, found, after = changelog.partition(heading)
    unreleased = after.partition("\n## ")[0]
    if not found or not unreleased.strip():
        raise ReleaseError("CHANGELOG.md has nothing under Unreleased")
    return f"{before}{heading}\n## {version} - {day.isoformat()}\n{after}"


def checksums(folder: Path) -> str:
    """One line for each file, as `sha256sum --check` reads it."""
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def _run(root: Path, *command: str) -> str:
    # uv is installed beside Python, and not always on the PATH.
    path = os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command[:3])} failed")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
