"""Tells twistd of `twistd inference-lab`; names our modules as strings, since twistd loads every plugin."""

from twisted.application.service import ServiceMaker

service_maker = ServiceMaker(
    "inference-lab",
    "inference_lab.tap",
    "An OpenAI-style server that dies on demand.",
    "inference-lab",
)
