"""The links to forward operators of threads that created autograd nodes are kept only as long as needed."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from opdump.adapters.torch.naming import ForwardLinks
from opdump.adapters.torch.private_names import sequence_number


@dataclass
class Named:
    op_name: str = "Default/mul-op0"


def test_a_thread_that_made_nodes_once_is_forgotten_behind_the_next_step() -> None:
    links: ForwardLinks[Named] = ForwardLinks()
    links.begins(Named())

    def make() -> None:
        first = sequence_number()
        torch.ones(1, requires_grad=True).mul(2)
        links.made(first, Named())

    other = threading.Thread(target=make)
    other.start()
    other.join()
    assert links.has_several_threads
    links.next_step()
    assert links.has_several_threads  # the links of an ended step are kept for one more step
    for _ in range(2):
        links.begins(Named())
        links.next_step()
    assert not links.has_several_threads
