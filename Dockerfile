FROM python:3.12-slim

# Works for any user id and with a read-only root but for /tmp and what is mounted: no user is made, no home is needed.
ENV HOME=/tmp \
    PIP_NO_CACHE_DIR=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

WORKDIR /app
COPY pyproject.toml README.md LICENSE workspace.yaml ./
COPY prep_assets ./prep_assets

# Editable, in a folder that everyone can write: a mounted checkout or a patch in place takes effect at once.
RUN pip install --editable . && chmod -R a+rwX /app

# The example writes where it is run; a recipe's relative paths start from the recipe.
WORKDIR /tmp
EXPOSE 3000
CMD ["prep-assets", "ui", "--host", "0.0.0.0", "--port", "3000"]
