# make demo · make test · make check · make bench · make bench-freshness · make bench-learning · make bench-store · make bench-serving · make bench-starts · make bench-e2e · make bench-trainer · make bench-scale · make bench-knobs · make soak · make chaos; each sets up what it needs, once.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; raise SystemExit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && { command -v $$p; break; }; done)
VENV := .venv
STAMP := $(VENV)/.installed
BIN := $(VENV)/bin

# python -m infra.docker.lock keeps the images' locks in step with requirements.lock
.PHONY: demo test check bench bench-freshness bench-learning bench-store bench-serving bench-starts bench-e2e bench-trainer bench-scale bench-knobs soak fuzz laws-sanitized chaos lock install clean

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "towline needs Python 3.11, 3.12 or 3.13; install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON) (once, about a minute)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@sed -n '/^uv==/,/^[^ ]/{/^uv==/p;/^ /p}' requirements.lock > $(VENV)/uv.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.lock
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock # knows of mirrors in pip's own settings
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m trainer.warm_up 2>/dev/null || $(BIN)/python -m trainer.warm_up
	@touch $@

install: $(STAMP)

demo: $(STAMP)
	@$(BIN)/towline demo $(if $(ONCE),--once) $(if $(RATE),--rate $(RATE))

test: check
	@$(BIN)/python -m tests.halves

check: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

lock:
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --all-extras --group dev --group build \
		pyproject.toml -o requirements.lock
	$(BIN)/python -m infra.docker.lock

# all of them, the best part of an hour, and docs/BENCHMARKS.md; ONLY="store e2e" for some
bench: $(STAMP)
	@$(BIN)/python -m benchmarks.everything $(ONLY)

bench-freshness: $(STAMP)
	@$(BIN)/python -m benchmarks.freshness

# PLOT=picture.png for HR@10 over time
bench-learning: $(STAMP)
	@$(BIN)/python -m benchmarks.learning $(if $(PLOT),--plot $(PLOT))

bench-store: $(STAMP)
	@$(BIN)/python -m benchmarks.store $(if $(ROWS),--rows $(ROWS)) $(if $(SECONDS),--seconds $(SECONDS))

# EVENTS= of a topic, RATE= and LIVE= seconds of the live part
bench-e2e: $(STAMP)
	@$(BIN)/python -m benchmarks.e2e $(if $(EVENTS),--events $(EVENTS)) $(if $(RATE),--rate $(RATE)) $(if $(LIVE),--live-seconds $(LIVE))

# beside TFRA on Redis, which is installed in an environment of its own; needs Python 3.12 or older
bench-trainer: $(STAMP)
	@$(BIN)/python -m benchmarks.trainer $(if $(ROUNDS),--rounds $(ROUNDS))

# PLOTS= folder for the pictures
bench-scale: $(STAMP)
	@$(BIN)/python -m benchmarks.scale $(if $(PLOTS),--plots $(PLOTS))

# SECONDS= of each measurement; needs wrk
bench-serving: $(STAMP)
	@$(BIN)/python -m benchmarks.serving $(if $(SECONDS),--seconds $(SECONDS))

# ITEMS=, SECONDS= of each measurement; needs wrk
bench-starts: $(STAMP)
	@$(BIN)/python -m benchmarks.serving.starts $(if $(ITEMS),--items $(ITEMS)) $(if $(SECONDS),--seconds $(SECONDS))

# MINUTES=, RATE= events a second: memory of every process while it runs
soak: $(STAMP)
	@$(BIN)/python -m benchmarks.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(RATE),--rate $(RATE)) $(if $(PLOT),--plot $(PLOT))

# SECONDS= for each of the targets
fuzz: $(STAMP)
	@$(BIN)/python -m tests.fuzz.run $(if $(SECONDS),--seconds $(SECONDS))

# the laws on a server whose module runs under ASan and UBSan
laws-sanitized: $(STAMP)
	@TOWLINE_MODULE_FLAGS="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1" \
		$(BIN)/python -m pytest tests/laws -k "module and not valkey"

bench-knobs: $(STAMP)
	@$(BIN)/python -m benchmarks.knobs

# SECONDS= of faults, SEED=, EVICTION=on|off, FEATURES=on|off, BACKEND=stock|module, MODEL=linear|towers, CLIENT=kafka-python|librdkafka; needs Java and a Redis or Valkey
chaos: $(STAMP)
	@$(BIN)/python -m tests.chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(EVICTION),--eviction $(EVICTION)) $(if $(FEATURES),--features $(FEATURES)) $(if $(BACKEND),--backend $(BACKEND)) $(if $(MODEL),--model $(MODEL)) $(if $(CLIENT),--client $(CLIENT))

clean:
	rm -rf $(VENV) .towline
