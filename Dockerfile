# SGLang's own image with the policy in it. Not built or run here: there was no Docker. `make wheel` first, then
#
#     docker build --tag sglang-feather .
#     docker run --gpus all --ipc host -p 30000:30000 sglang-feather \
#         python3 -m sglang.launch_server --model-path MODEL --host 0.0.0.0 --schedule-policy feather
FROM lmsysorg/sglang:v0.5.23

COPY dist/feather_sglang-*.whl /tmp/feather/
RUN python3 -m pip install --no-cache-dir --no-index --no-deps /tmp/feather/*.whl && rm -r /tmp/feather \
    && feather --version
