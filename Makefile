# SPDX-License-Identifier: MIT
#
# A thin front to Meson. `make demo` and `make test` are all that a newcomer needs; `make help` lists the rest.

PREFIX ?= /usr/local
BUILD ?= build/plain
SOAK_MINUTES ?= 20

TESTFLAGS ?=

# model, interop, bench and demo are folders too.
.PHONY: all build demo test test-all check stories lint format model interop bench bench-check soak install deb static clean help
.NOTPARALLEL:

all: build
	@echo "built: $(BUILD)/cli/holdfast (see it work with 'make demo')"

build:
	@tools/setup build
	@tools/build $(BUILD) -Dtests=false

demo: build
	@tools/demo $(BUILD)

# TESTFLAGS=--complete: what could not be run is a failure, too.
test:
	@tools/setup test
	@tools/test $(TESTFLAGS)

# In one run, so that what only computes has the time that the tests of `make test` spend waiting.
test-all:
	@tools/setup test model interop deb static
	@tools/test $(TESTFLAGS) plain lint all

check:
	@tools/setup test
	@tools/test $(TESTFLAGS) check

# docs/STORIES.md and its pictures are made of what was seen.
stories:
	@tools/setup test
	@tools/test $(TESTFLAGS) stories
	@tests/stories/book build/plain docs

lint:
	@tools/setup test
	@tools/test lint analyse

format:
	@tools/setup test
	@find include src cli module tests interop examples demo bench -name '*.[ch]' -exec clang-format -i {} +

model:
	@tools/setup model
	@model/run

interop:
	@tools/setup interop
	@tools/build $(BUILD) -Dtests=true
	@interop/run $(BUILD)

bench:
	@tools/setup bench
	@tools/build $(BUILD) -Dtests=true
	@bench/run $(BUILD)

# REVISION to compare with, if not the last release; STORES: these alone.
bench-check:
	@tools/setup test
	@tools/build $(BUILD) -Dtests=true
	@bench/check $(if $(REVISION),--base $(REVISION)) $(BUILD) $(STORES)

soak:
	@tools/setup test
	@tools/test --minutes=$(SOAK_MINUTES) soak

install:
	@tools/setup build
	@tools/build $(BUILD) -Dprefix=$(PREFIX) -Dtests=false
	@DESTDIR="$(DESTDIR)" meson install -C $(BUILD) --no-rebuild --quiet
	@# The loader finds a new library in /usr/local only through its cache.
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" -ne 0 ] || ldconfig
	@echo "installed: $(DESTDIR)$(PREFIX)"

deb:
	@tools/setup deb
	@tools/deb

static:
	@tools/setup static
	@tools/build build/one-file --buildtype=release -Done_file=true -Dpostgres=disabled -Dmysql=disabled
	@strip -o build/holdfast-static build/one-file/cli/holdfast-static
	@echo "built: build/holdfast-static, which needs no other file"

clean:
	@rm -rf build

help:
	@echo "make            build the library and the command in $(BUILD)"
	@echo "make demo       build, then watch processes compete for the last items of a stock"
	@echo "make check      the tests that tell most, and the promises once on each engine (the quickest)"
	@echo "make test       the tests of the library, the command and every store (10 minutes)"
	@echo "make test-all   these, and failovers, sanitizers, valgrind, analysers, models, interop, install (half an hour)"
	@echo "make stories    see how locks are lost, with other recipes and with Holdfast, and write docs/STORIES.md"
	@echo "make lint       format, own rules, static analysis, manual pages"
	@echo "make format     lay out the sources as clang-format 14 does"
	@echo "make model      go through every order of events of redlock://, and of late requests, with spin (four minutes)"
	@echo "make interop    share locks with Redisson, Curator, etcdctl, consul and others, on real servers"
	@echo "make bench      measure, beside what the system itself offers"
	@echo "make bench-check  compare with the last release, by turns (half an hour); STORES=\"mem redis\", REVISION="
	@echo "make soak       all tests and the long ones, over and over; SOAK_MINUTES=20"
	@echo "make install    into PREFIX=/usr/local, below DESTDIR if that is set"
	@echo "make static     the command in one file, with all engines but postgres: and mysql:"
	@echo "make deb        Debian packages, in build/deb"
	@echo "make clean      remove build/"
