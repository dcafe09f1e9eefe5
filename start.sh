#!/bin/sh
# Voice Gateway in one command. ./start.sh serves; ./start.sh ARGS… runs `gateway ARGS…`.
# The first run installs into .venv, later ones start at once. Reads .env and gateway.toml beside this file.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")"

scripts/install --no-dev
[ $# -gt 0 ] || set -- serve
exec .venv/bin/gateway "$@"
