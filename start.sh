#!/bin/sh
# Voice Gateway in one command: ./start.sh serves, ./start.sh ARGS… runs `gateway ARGS…`.
# The first run installs into .venv; later runs start at once. Reads .env and gateway.toml in this folder.
# Files in ARGS are those of the folder in which it was typed.
set -eu
GATEWAY_FOLDER="$(pwd)"
export GATEWAY_FOLDER
CDPATH='' cd -- "$(dirname -- "$0")"

# Install the extras that the settings and the arguments need.
settings="
DEEPGRAM_API_KEY=${DEEPGRAM_API_KEY:-}
OPENAI_API_KEY=${OPENAI_API_KEY:-}
XAI_API_KEY=${XAI_API_KEY:-}
VOICE_ENGINE=${VOICE_ENGINE:-}
MEMORY_VECTORS=${MEMORY_VECTORS:-}
REDIS_URL=${REDIS_URL:-}
DATABASE_URL=${DATABASE_URL:-}
OTEL_EXPORTER_OTLP_ENDPOINT=${OTEL_EXPORTER_OTLP_ENDPOINT:-}
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=${OTEL_EXPORTER_OTLP_TRACES_ENDPOINT:-}
$(sed "s/[\"']//g; s/^[[:space:]]*\(export[[:space:]]\{1,\}\)*\([A-Z_]*\)[[:space:]]*=[[:space:]]*/\2=/" .env 2>/dev/null || true)"
extras='--extra mcp --extra pdf'
case "$settings" in *"
MEMORY_VECTORS=false"*) ;; *) extras="$extras --extra vectors" ;; esac
case "$settings" in *"
REDIS_URL="[![:space:]]*) extras="$extras --extra redis" ;; esac
case "$settings" in *"
DATABASE_URL="[![:space:]]*) extras="$extras --extra postgres" ;; esac
case "$settings" in *"
OTEL_EXPORTER_OTLP_ENDPOINT="[![:space:]]* | *"
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="[![:space:]]*) extras="$extras --extra otel" ;; esac
case " $*" in *" --workers"*) extras="$extras --extra workers" ;; esac
# The engine that runs on this machine: for the demo, by choice, or without a key for one in the cloud.
local=yes
for key in DEEPGRAM OPENAI XAI; do
    case "$settings" in *"
${key}_API_KEY="[![:space:]]*) local=no ;; esac
done
while read -r line; do
    case "$line" in VOICE_ENGINE=*local* | engine*=*\"local\"*) local=yes ;; esac
done <<EOF
$settings
$(cat gateway.toml 2>/dev/null || true)
EOF
case " $* " in
    " demo"*" --recorded "*) ;;
    " demo "*) local=yes ;;
esac
[ $local = no ] || extras="$extras --extra local"
# shellcheck disable=SC2086  # words
scripts/install --no-dev $extras
[ $# -gt 0 ] || set -- serve
case "$0" in */*) command="$0" ;; *) command="./$0" ;; esac # sh start.sh
export GATEWAY_COMMAND="$command" # for hints that work as typed
exec .venv/bin/gateway "$@"
