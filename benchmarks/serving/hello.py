"""The least that FastAPI can do, on the server that the service runs on: what a lookup is measured against."""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI

app = FastAPI()


@app.get("/")
async def hello() -> dict[str, str]:
    """Hello, world."""
    return {"hello": "world"}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), access_log=False, log_level="warning", server_header=False)
