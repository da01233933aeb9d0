"""`make sanitize` recognises the reports of this compiler's sanitizers, and the calls from threads are correct without
them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sanitize.__main__ import reports_in

_FAULTY = """
#include <limits.h>
#include <stdlib.h>
int main(int count, char** words) {
  (void)words;
  int sum = INT_MAX;
  sum += count;
  int* numbers = malloc(count * sizeof(int));
  sum += numbers[count];
  free(numbers);
  return sum == 42;
}
"""


@pytest.mark.compiler
@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is missing")
def test_each_report_of_a_sanitizer_is_counted(tmp_path: Path) -> None:
    (tmp_path / "faulty.c").write_text(_FAULTY)
    program = tmp_path / "faulty"
    build = ["gcc", "-g", "-fsanitize=address,undefined", str(tmp_path / "faulty.c"), "-o", str(program)]
    if subprocess.run(build, capture_output=True, check=False).returncode != 0:
        pytest.skip("this gcc has no sanitizers")
    ended = subprocess.run([program], capture_output=True, text=True, check=False)
    first, second = reports_in([ended.stderr, "nothing\n"])
    assert "signed integer overflow" in first
    assert first.startswith(f"{tmp_path}/faulty.c:7")
    assert second.startswith("SUMMARY: AddressSanitizer: heap-buffer-overflow")
    assert reports_in(["all was well\n"]) == []


def test_calls_from_several_threads_give_what_one_thread_gives() -> None:
    command = [sys.executable, "-m", "tests.sanitize.threads"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout == "384 calls from 4 threads, 0 wrong\n"
