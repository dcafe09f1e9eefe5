#!/bin/sh
# Voice Gateway in one command. ./start.sh serves; ./start.sh ARGS… runs `gateway ARGS…`.
# The first run installs into .venv, later ones start at once. Reads .env and gateway.toml beside this file.
set -eu
CDPATH='' cd -- "$(dirname -- "$0")"

# Without a key for the voice engine in the cloud, or by choice, the one that runs here comes along.
case "
DEEPGRAM_API_KEY=${DEEPGRAM_API_KEY:-}
VOICE_ENGINE=${VOICE_ENGINE:-}
$(cat .env 2>/dev/null || true)" in
    *"
VOICE_ENGINE=local"*) scripts/install --no-dev --extra local ;;
    *"
DEEPGRAM_API_KEY="[![:space:]]*) scripts/install --no-dev ;;
    *) scripts/install --no-dev --extra local ;;
esac
[ $# -gt 0 ] || set -- serve
exec .venv/bin/gateway "$@"
