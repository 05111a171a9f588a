# The two images of a cluster. `trial` runs in every cell's pod and holds what a trial needs, nothing else; an image of a
# user's own agent builds on it. `control` holds the command line, and what runs beside it: intake, controller, publisher.
#
#     docker build --target trial -t REGISTRY/cellwise-trial .
#     docker build --target control -t REGISTRY/cellwise-control .
#
# Both run as user 65532 with a read-only root. For that every module that they load is compiled here: a pod that
# cannot write its bytecode would compile at each start.
ARG BASE=python:3.11-slim

FROM ${BASE} AS runtime
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PIP_BREAK_SYSTEM_PACKAGES=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
RUN echo 'cellwise:x:65532:65532:cellwise:/tmp:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'cellwise:x:65532:' >> /etc/group

FROM runtime AS trial
COPY requirements/trial.txt /tmp/requirements.txt
RUN python -m pip install --no-compile --no-deps --require-hashes -r /tmp/requirements.txt \
    && rm /tmp/requirements.txt \
    && packages=$(python -c "import pydantic, pathlib; print(pathlib.Path(pydantic.__file__).parents[1])") \
    && find "$packages" -type d \( -name tests -o -name test \) -prune -exec rm -r {} + \
    && python -m compileall -q -j 0 --invalidation-mode unchecked-hash "$packages" \
    && echo /opt/cellwise > "$packages/cellwise.pth"
WORKDIR /opt/cellwise
COPY simulator simulator
# The standard library too, as far as a trial loads it, at its start or late with orjson and rfc8785: the official base
# comes without bytecode.
RUN python -m compileall -q --invalidation-mode unchecked-hash simulator \
    && python -c "import importlib.util as u, os, py_compile, sys; import orjson, rfc8785, simulator.pod, simulator.agent_container, simulator.output, simulator.worlds.orders; \
files = [getattr(module, '__file__', None) or '' for module in list(sys.modules.values())]; \
[py_compile.compile(file) for file in files if file.endswith('.py') and not os.path.exists(u.cache_from_source(file))]"
USER 65532:65532
CMD ["python", "-m", "simulator.pod"]

FROM runtime AS control
COPY requirements/control.txt /tmp/requirements.txt
RUN python -m pip install --no-deps --require-hashes -r /tmp/requirements.txt \
    && rm /tmp/requirements.txt
WORKDIR /opt/cellwise
COPY pyproject.toml README.md LICENSE ./
COPY simulator simulator
COPY grading grading
COPY k8s k8s
RUN python -m pip install --no-deps --no-build-isolation . \
    && rm -rf /opt/cellwise/* \
    && cellwise --version
USER 65532:65532
CMD ["cellwise", "--help"]
