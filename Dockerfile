FROM python:3.12.13-slim@sha256:229a2c5bfa27522db7815ea81f9bed70af17ccb9de9fc7ad142b1877b5830d36 AS build
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
RUN pip install --no-cache-dir "uv>=0.9,<1"
WORKDIR /app
# What compose.yaml uses. --build-arg MORE="--extra local" adds the voice engine that needs no account, --extra otel traces.
ARG EXTRAS="--extra mcp --extra pdf --extra postgres --extra redis --extra vectors"
ARG MORE=""
# Dependencies change less often than the program: they are a layer of their own.
COPY pyproject.toml uv.lock ./
# hadolint ignore=SC2086
RUN uv sync --frozen --no-dev --no-install-project ${EXTRAS} ${MORE}
COPY README.md LICENSE ./
COPY docs docs
COPY gateway gateway
COPY prompts prompts
# hadolint ignore=SC2086
RUN uv sync --frozen --no-dev --no-editable ${EXTRAS} ${MORE}

FROM python:3.12.13-slim@sha256:229a2c5bfa27522db7815ea81f9bed70af17ccb9de9fc7ad142b1877b5830d36
RUN install -d -o 10001 -g 10001 -m 0700 /data
WORKDIR /app
COPY --from=build /app/.venv .venv
# Mount your own prompts/ and gateway.toml here. The program's prompts are in its package.
ENV PATH="/app/.venv/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    HOST=0.0.0.0 \
    PORT=8000 \
    DATA_DIR=/data \
    VOICE_SESSION_ARCHIVE_DIR=/data/voice-sessions
USER 10001:10001
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=3s --start-period=10s CMD ["python", "-c", \
    "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ[\"PORT\"]}/health', timeout=2)"]
ENTRYPOINT ["gateway"]
CMD ["serve"]
