FROM python:3.12-slim

# An init as PID 1: each run that the UI starts leaves an orphan, which nothing else would reap. Not pinned: Debian keeps
# only the newest build of a release, so a pinned one soon cannot be installed.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*

# Any user id, a read-only root but for /tmp and what is mounted: no user is made, every cache follows HOME to /tmp, and
# a mounted checkout gets no bytecode of another user.
ENV HOME=/tmp \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

WORKDIR /app

# What we need before what we are: an edit of our own sources leaves this layer as it is. The base image comes without
# the standard library's bytecode, and nobody could write it later: a process would compile it again at each start.
COPY pyproject.toml ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
        > /tmp/requirements.txt \
    && pip install --requirement /tmp/requirements.txt \
    && rm /tmp/requirements.txt \
    && python -m compileall -q -x site-packages "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"

# Editable, in a folder that everyone can write: a mounted checkout or a patch in place takes effect at once.
COPY README.md LICENSE workspace.yaml ./
COPY prep_assets ./prep_assets
RUN pip install --no-deps --editable . \
    && python -m compileall -q prep_assets \
    && chmod -R a+rwX /app

# The example writes where it is run; a recipe's relative paths start from the recipe.
WORKDIR /tmp
EXPOSE 3000
# `docker stop` is what Ctrl-C is at a terminal, to every process: a prepare ends with its message, and a run that the UI
# started with an event that says so, instead of being shown as running for ever.
STOPSIGNAL SIGINT
ENTRYPOINT ["tini", "-g", "--"]
CMD ["prep-assets", "ui", "--host", "0.0.0.0", "--port", "3000"]
