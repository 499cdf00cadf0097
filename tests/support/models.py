"""Models as files say them."""

from __future__ import annotations

TEST_SECONDS = 60


MODEL = 'model = "llama-3.1-8b-instruct"\n'


INSTANT = "[latency]\nttft_ms = 0\nitl_ms = 0\n"


SCHEDULER = """[scheduler]
max_num_batched_tokens = 2048
max_num_seqs = 64
block_size = 16
policy = "fcfs"
enable_chunked_prefill = true
"""


PLAIN, SHIFTED = "é" * 60, "xx" + "é" * 60


SLOW = "[latency]\nttft_ms = 0\nitl_ms = 60000\n"
