# Every command of Ariadne. `make` alone lists them.
#
# The control environment is made when it is missing: below ARIADNE_CACHE (default: the user's
# cache folder), named by what is in it, under a temporary name first. Nothing else is installed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
.PHONY: help setup trainer-python up down status logs run preflight solve bench test chaos load \
  lint lock dashboards

ENVS = $(or $(ARIADNE_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ariadne)/envs
ARGS ?=

# Sets $python to the first Python 3.12 that can make environments. A shim on PATH may exist and
# not work, so each is tried.
define FIND_PYTHON
candidates=(python3.12 python3 python /usr/bin/python3.12 ~/.local/bin/python3.12 \
  ~/.pyenv/versions/3.12*/bin/python3.12 ~/.local/share/uv/python/cpython-3.12*/bin/python3.12 \
  ~/*conda3/envs/*/bin/python3.12 /usr/local/{bin,*/bin}/python3.12 /opt/{*,*/*}/bin/python3.12)
if [ -n "$${PYTHON:-}" ]; then candidates=("$$PYTHON"); fi
python=
for candidate in "$${candidates[@]}"; do
  python=$$("$$candidate" -c 'import sys, ensurepip; sys.exit(print(sys.executable) if \
    sys.version_info[:2] == (3, 12) else 1)' 2>/dev/null) && break || python=
done
if [ -z "$$python" ]; then
  echo "ariadne needs Python 3.12 with venv: found none in" \
    "$${PYTHON:-PATH, ~/.pyenv, uv, /usr/local or /opt};" \
    "install it or set PYTHON=/path/to/python3.12" >&2
  exit 1
fi
endef

# Programs that the tests ask for real: a browser for pages, Prometheus for queries, and what builds
# and keeps images.
define DEBIAN
missing=()
for program in chromium prometheus promtool buildah skopeo docker-registry busybox; do
  command -v "$$program" >/dev/null || missing+=("$$program")
done
if [ "$${#missing[@]}" != 0 ]; then
  packages="chromium fonts-liberation prometheus buildah skopeo docker-registry busybox-static"
  if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "the tests need $${missing[*]} on PATH: on Debian, apt-get install $$packages" >&2
    exit 1
  fi
  echo "installing Debian's packages for the tests: $$packages" >&2
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$packages >&2
  if [ -d /run/systemd/system ]; then  # the tests start their own, and port 5000 is MLflow's
    systemctl --quiet disable --now docker-registry prometheus >&2
  fi
fi
endef

# Sets $control to the environment of requirements.lock, which also holds uv.
define CONTROL
$(FIND_PYTHON)
version=$$("$$python" -c 'import platform; print(platform.python_version())')
digest=$$({ cat requirements.lock; echo "$$version"; } | sha256sum)
control="$(ENVS)/control-$${digest:0:12}"
if ! "$$control/bin/python" -c '' 2>/dev/null; then
  echo "installing the control environment (about 1 GB) in $$control" >&2
  mkdir -p "$(ENVS)"
  making=$$(mktemp -d "$(ENVS)/.making-XXXXXXXX")
  trap 'rm -rf "$$making"' EXIT
  "$$python" -m venv "$$making/uv"
  awk '/^[a-z]/ { mine = /^uv==/ } mine && !/#/' requirements.lock > "$$making/uv.txt"
  "$$making/uv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --require-hashes --requirement "$$making/uv.txt"
  uv="$$making/uv/bin/uv"
  "$$uv" venv --quiet --relocatable --no-python-downloads --python "$$python" "$$making/env"
  "$$uv" pip sync --quiet --require-hashes --compile-bytecode --python "$$making/env/bin/python" \
    requirements.lock
  if ! "$$control/bin/python" -c '' 2>/dev/null; then  # still missing, or its Python was removed
    rm -rf "$$control"
    mv -T "$$making/env" "$$control" 2>/dev/null || "$$control/bin/python" -c ''
  fi
  rm -rf "$$making"
  trap - EXIT
fi
endef

LOCK = "$$control/bin/uv" pip compile --quiet --python-version 3.12 \
  --python-platform x86_64-manylinux_2_28 --generate-hashes --no-emit-index-url \
  --custom-compile-command "make lock" $(ARGS)

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' Makefile

setup:  ## install what is missing: the control and the trainer environment
	@$(CONTROL)
	"$$control/bin/python" -m flows setup

trainer-python:  ## print the interpreter of the trainer environment
	@$(CONTROL)
	"$$control/bin/python" -m flows trainer-python

up:  ## start the services, or find them running
	@$(CONTROL)
	"$$control/bin/python" -m flows up

down:  ## stop everything that runs here
	@$(CONTROL)
	"$$control/bin/python" -m flows down

status:  ## show what runs, and the newest runs
	@$(CONTROL)
	"$$control/bin/python" -m flows status

logs:  ## follow the logs of services, nodes and the newest job; ARGS=--no-follow ends at once
	@$(CONTROL)
	"$$control/bin/python" -m flows logs $(ARGS)

run:  ## run the pipeline and follow it, e.g. make run PROFILE=smoke STEPS=2 SEED=3
	@$(CONTROL)
	"$$control/bin/python" -m flows run $(if $(PROFILE),--profile $(PROFILE)) \
	  $(if $(STEPS),--steps $(STEPS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

preflight:  ## check a profile before it is paid for, e.g. make preflight PROFILE=hyperpod ARGS=--plan
	@$(CONTROL)
	"$$control/bin/python" -m flows preflight $(if $(PROFILE),--profile $(PROFILE)) \
	  $(if $(STEPS),--steps $(STEPS)) $(ARGS)

solve:  ## let the hosted adapter play a maze, e.g. make solve SEED=123
	@$(CONTROL)
	"$$control/bin/python" -m flows solve $(if $(SEED),--seed $(SEED)) $(ARGS)

bench:  ## measure speed, memory and growth, e.g. make bench ARGS="maze rollout"
	@$(CONTROL)
	"$$control/bin/python" -m flows setup
	"$$control/bin/python" -m tests.bench $(ARGS)

test:  ## run the tests, or those of ARGS, e.g. make test ARGS=tests/test_services.py
	@$(CONTROL)
	$(if $(ARGS),,$(MAKE) --no-print-directory lint)
	$(if $(ARGS),,$(DEBIAN))
	"$$control/bin/python" -m flows setup
	trainer=$$("$$control/bin/python" -m flows trainer-python)
	if [ -n "$(ARGS)" ]; then
	  case "$(ARGS)" in *tests/trainer*) control="$${trainer%/bin/python}" ;; esac
	  HF_HUB_OFFLINE=1 "$$control/bin/python" -m pytest $(ARGS)
	else
	  HF_HUB_OFFLINE=1 "$$trainer" -m pytest tests/trainer
	  "$$control/bin/python" -m pytest tests --ignore tests/trainer --ignore tests/chaos \
	    --ignore tests/test_board.py
	  # On its own: Prefect's test harness, which others use, waits for ever for events of its server.
	  "$$control/bin/python" -m pytest tests/test_board.py
	fi

chaos:  ## kill, freeze and damage what can be, an hour long, e.g. make chaos ARGS="-k head"
	@$(CONTROL)
	"$$control/bin/python" -m flows setup
	"$$control/bin/python" -m pytest tests/chaos $(ARGS)

load:  ## put load on what is hosted: requests a second, waiting times, a switch there and back
	@$(CONTROL)
	"$$control/bin/python" -m tests.load

dashboards:  ## write, upload or draw Grafana's dashboards, e.g. make dashboards ARGS=sheet
	@$(CONTROL)
	"$$control/bin/python" -m flows dashboards $(or $(ARGS),--help)

lint:  ## check style and types
	@$(CONTROL)
	"$$control/bin/ruff" check .
	"$$control/bin/ruff" format --check .
	"$$control/bin/ty" check --error-on-warning --python "$$control"

lock:  ## write the lock files; make lock ARGS=--upgrade moves every version
	@$(CONTROL)
	$(LOCK) requirements.in -o requirements.lock
	cd containers/trainer
	$(LOCK) requirements.in --override overrides.in -o requirements.lock
	$(LOCK) requirements-cuda.in --override overrides-cuda.in -o requirements-cuda.lock
