"""`python -m opdump`, which is what `torchrun -m opdump` needs."""

from opdump.commands import main

main()
