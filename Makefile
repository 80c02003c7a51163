# Everything a developer or a newcomer types. Prerequisites: Python 3.11 or later, Java 17, Maven.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SPARK_VENV := .venv-spark
SPARK_BIN := $(SPARK_VENV)/bin
SPARK_STAMP := $(SPARK_VENV)/.installed
DEMO_DIR := build/demo
AIRFLOW_DIR := build/airflow
GATED := tests/system/test_audited_migration.py tests/system/test_consumers_audited.py
PURE := tests/core tests/steps
JOURNEYS := $(addprefix tests/machines/,test_migration_on_machines.py test_public_units_journey.py test_ansible_on_machines.py test_cutover_on_machines.py)
DISASTERS := tests/system/test_disasters.py tests/system/test_dual_write.py tests/system/test_secured.py
export AIRFLOW__CORE__LOAD_EXAMPLES ?= False
# A test run gives the same answer each time; make explore varies it.
export PYTHONHASHSEED ?= 0
# Of tests on real processes alone, in continuous integration: one second try, named in its last lines. A pure test is never repeated.
REPEATS ?=
# The longest tests stand at the end of a slow run: they are its budget (docs/testing.md).
LONGEST := --durations 25 --durations-min 5
unexport PYTHONDONTWRITEBYTECODE  # where it is set, each of some hundred processes compiles every module anew

.DEFAULT_GOAL := help
.PHONY: help prerequisites setup setup-spark setup-kerberos lint check test test-slow test-clusters test-searches long explore pairs airflows s3 guards mutants gated disasters releases proofs spark-cluster demo airflow pictures bench faults machines journeys wheel interceptor cluster cluster-down clean

help: ## list all commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

prerequisites:
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is missing: install it (Debian: apt-get install python3.11 python3.11-venv), or set PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "Python's venv module is missing: install it (Debian: apt-get install python3-venv)"; exit 1; }
	@command -v java >/dev/null || { echo "Java is missing: install a Java 17 runtime (Debian: apt-get install openjdk-17-jre-headless)"; exit 1; }
	@command -v mvn >/dev/null || [ -n "$$KAFKA_HOME" ] || { echo "Maven is missing: install it (Debian: apt-get install maven), or set KAFKA_HOME to an unpacked Kafka 3.9"; exit 1; }

$(STAMP): constraints-3.11.txt setup.cfg pyproject.toml
	@$(MAKE) --no-print-directory prerequisites
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints-3.11.txt --editable '.[test,spark]'
	touch $(STAMP)

# Spark's own environment: pyspark and Airflow's thin pyspark-client must never meet in one.
$(SPARK_STAMP): requirements-spark-3.11.txt
	@$(MAKE) --no-print-directory prerequisites
	test -x $(SPARK_BIN)/python || $(PYTHON) -m venv $(SPARK_VENV)
	$(SPARK_BIN)/pip install --quiet --disable-pip-version-check --requirement requirements-spark-3.11.txt
	touch $(SPARK_STAMP)

setup: $(STAMP) ## install Airflow's environment and download Kafka's jars
	$(BIN)/python -m tests.kit.localcluster prepare

setup-spark: $(SPARK_STAMP) ## install Spark's environment with the Kafka connector's jars, for the audit
	PYTHONPATH=. $(SPARK_BIN)/python -m airflow_provider_kmigrate.audit.connector
	PYTHONPATH=. $(SPARK_BIN)/python -m tests.kit.spark_classes

setup-kerberos: $(STAMP) ## install the packages for Kerberos, which are built here: libkrb5-dev and a compiler must be installed
	$(BIN)/pip install -q -c constraints-3.11.txt -e '.[kerberos]'

lint: $(STAMP) ## check format, lint, layers and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

check: lint ## fast: lint, and every test that needs no cluster and no Spark and is not slow
	$(BIN)/pytest -q -n 3 --dist loadgroup -m "not cluster and not slow" --ignore tests/audit

test: check test-slow ## all tests but the long ones: lint and every quick test, the audit on Spark, real clusters, everything slow (20 minutes)

test-slow: setup setup-spark
	PYTHONPATH=. PYSPARK_PYTHON=$(CURDIR)/$(SPARK_BIN)/python $(SPARK_BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder $(LONGEST) -m "not long" tests/audit
	@$(MAKE) --no-print-directory --jobs 2 --keep-going test-clusters test-searches
	$(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder $(LONGEST) -m "slow and not cluster and not long" --ignore tests/audit $(addprefix --ignore ,$(PURE))

test-clusters: $(STAMP)
	$(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder $(LONGEST) -m "cluster and not long" $(REPEATS) --ignore tests/audit

# In the pauses of the real clusters, which wait more than they work: these need nothing but a processor, and let everybody else go first.
test-searches: $(STAMP)
	@mkdir -p build
	@nice -n 19 $(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder $(LONGEST) -m "slow and not long" $(PURE) > build/test-searches.txt 2>&1; code=$$?; cat build/test-searches.txt; exit $$code

long: setup setup-spark ## long tests, minutes each: rollback by its DAG and a second migration, five brokers in racks, group rollback from every stage and in every mix; every state with three controllers; more random histories
	PYTHONPATH=. PYSPARK_PYTHON=$(CURDIR)/$(SPARK_BIN)/python $(SPARK_BIN)/python -m pytest -q -n 2 -m long tests/audit
	$(BIN)/pytest -q -m "not cluster and not machines and long" --ignore tests/audit
	$(BIN)/pytest -q -m "cluster and long" $(REPEATS) --ignore tests/audit $(addprefix --ignore ,$(GATED) $(DISASTERS))

explore: $(STAMP) ## run random tests with new seeds for MINUTES (20); print the smallest failing history as a ready test; nightly
	$(BIN)/python -m tests.explore --minutes $(or $(MINUTES),20) $(ARGS)

pairs: $(STAMP) ## search every pair of faults at every step of a migration and of a rollback, on the simulated cluster; print its size, the worst stalls and what it found. A part: ARGS='--share 0.01 --seed 7' (all options: ARGS=--help); nightly
	$(BIN)/python -m tests.pairs $(ARGS)

airflows: $(STAMP) ## install kmigrate beside each older release of Airflow that it runs on, and for Python 3.12 and 3.13; migrate a simulated cluster there, with killed tasks and an approver. ARGS=--scheduler: then a real one, on a scheduler; nightly
	$(BIN)/python -m tests.airflows $(ARGS)

# An environment of its own: aiobotocore needs an older python-dateutil than all other tests have.
s3: prerequisites ## test the object store against moto's S3, in an environment of its own: processes of two machines, a whole simulated migration; nightly
	$(PYTHON) -m venv build/s3
	grep -v '^python-dateutil==' constraints-3.11.txt > build/s3/constraints.txt
	build/s3/bin/pip install --quiet --disable-pip-version-check --constraint build/s3/constraints.txt --editable '.[test,s3-test]'
	build/s3/bin/pytest -q $(LONGEST) tests/clients/test_object_log.py tests/provider/test_object_store.py

guards: $(STAMP) $(SPARK_STAMP) ## take every guard out of a copy of the code, one at a time: the test that tests/guards.json names must fail. Goes on where it was interrupted; nightly
	$(BIN)/python -m tests.guards check $(ARGS)

mutants: $(STAMP) ## mutation tests of the decision core: try COUNT (200) small changes drawn by SEED (1), print those that no test notices; nightly
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints-3.11.txt --editable '.[test,spark,mutants]'
	$(BIN)/python -m tests.mutants --seed $(or $(SEED),1) --count $(or $(COUNT),200) $(ARGS)

gated: setup setup-spark ## migrate a real cluster and a real group with Spark's verdicts as gates; a slow canary, a streaming job held for both rolls (20 minutes)
	$(BIN)/pytest -q $(REPEATS) $(GATED)

disasters: setup ## cause the known disasters on real brokers and check that kmigrate's gates prevent them; migrate and roll back a cluster with TLS, passwords and ACLs (15 minutes)
	$(BIN)/pytest -q $(REPEATS) $(DISASTERS)

releases: setup ## migrate a real cluster of each pair of releases, roll it back and migrate it again; goes on where it was interrupted, writes build/releases.json (90 minutes)
	$(BIN)/python -m tests.system.releases $(ARGS)

proofs: setup setup-spark ## what no shorter test shows: the rows of KIP-125's matrix, a disaster of each class, TLS with passwords and ACLs there and back, a migration with Spark's gates
	$(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m proof $(REPEATS) tests/system

spark-cluster: setup setup-spark ## run the audit's tests on a Spark cluster: a master and two executors in separate processes (15 minutes); executors killed, a broker with TLS and a password
	KMIGRATE_SPARK_MASTER='local-cluster[2,1,1024]' PYTHONPATH=. PYSPARK_PYTHON=$(CURDIR)/$(SPARK_BIN)/python $(SPARK_BIN)/python -m pytest -q $(LONGEST) -m "not long" tests/audit
	PYTHONPATH=. PYSPARK_PYTHON=$(CURDIR)/$(SPARK_BIN)/python $(SPARK_BIN)/python -m pytest -q tests/audit/test_standalone.py tests/audit/test_object_store.py
	$(BIN)/pytest -q tests/system/test_secured_spark.py

demo: setup setup-spark ## move two groups off ZooKeeper, one each way, and migrate a local cluster of 7 processes under load, with the real DAGs, by dag.test; ends with Spark's verdict and a report; MACHINES=1: on machines of their own, over ssh; ROLLBACK=1: first migrated on an Airflow with a scheduler, and rolled back by its approver
	$(BIN)/python -m benchmarks.demo --dir $(DEMO_DIR) $(if $(MACHINES),--machines) $(if $(ROLLBACK),--rollback)

airflow: setup ## open the DAGs in Airflow's UI on a local cluster; Ctrl-C stops everything. Under load: make airflow ARGS=--load; all options: ARGS=--help
	$(BIN)/python -m benchmarks.airflow_ui --dir $(AIRFLOW_DIR) $(ARGS)

pictures: $(STAMP) ## take the pictures of preflight, plan and report in docs/images again, from the newest pages below build; make demo leaves them (Debian: apt-get install chromium)
	PYTHONPATH=. $(BIN)/python -m tests.pages.pictures

bench: setup setup-spark ## run every benchmark, or one: make bench BENCH=overhead
	$(BIN)/python -m benchmarks $(BENCH)

faults: setup ## migrate a real cluster, roll it back and migrate it again, with a fault in every phase; there and back with two log directories, and with a login at ZooKeeper; then kill Airflow itself (55 minutes)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints-3.11.txt --editable '.[test,spark,sasl]'
	PYTHONPATH=. $(BIN)/python -m tests.system.faults
	PYTHONPATH=. $(BIN)/python -m tests.system.faults --shape directories --parts 3
	PYTHONPATH=. $(BIN)/python -m tests.system.faults --shape zookeeper-login --parts 3
	PYTHONPATH=. $(BIN)/python -m tests.system.airflow_faults

machines: setup ## machines with a systemd, sshd and sudo of their own: the agent killed, cut off, full disks, lost power (5 minutes; as root; Debian: apt-get install systemd-container openssh-server sudo postgresql)
	$(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder $(LONGEST) -m machines $(REPEATS) $(addprefix --ignore ,$(JOURNEYS)) tests/machines

journeys: setup ## whole migrations and rollbacks over ssh on such machines, with faults, by an Airflow on a machine of its own; public units; the Ansible role; a real application's units cut over (35 minutes; needs what make machines needs)
	$(BIN)/pytest -q -m machines $(REPEATS) $(JOURNEYS)

wheel: prerequisites ## build two wheels into build/wheel, from the files of this checkout: the provider's, and kmigrate-applications for applications, without Airflow
	rm -rf build/wheel build/applications
	$(PYTHON) -m venv build/wheel-venv
	build/wheel-venv/bin/python -m tests.kit.library_wheel build/applications
	build/wheel-venv/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel . build/applications
	@ls build/wheel/*.whl

interceptor: ## build the interceptor's jar for JVM clients into build/interceptor; needs a JDK and Maven
	mvn -q -B -f interceptor/pom.xml compile jar:jar
	@ls build/interceptor/*.jar

cluster: setup ## start a local cluster in ZooKeeper mode; its output says how to use it
	$(BIN)/python -m tests.kit.localcluster up

cluster-down: ## stop the local cluster
	$(BIN)/python -m tests.kit.localcluster down

clean: ## stop all local clusters and remove what was built
	-for d in build/localcluster $(DEMO_DIR)/cluster $(AIRFLOW_DIR)/cluster build/faults/run/cluster build/faults/directories/run/cluster build/faults/zookeeper-login/run/cluster build/faults/airflow/cluster; do test ! -d $$d || $(BIN)/python -m tests.kit.localcluster clean --dir $$d; done
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
