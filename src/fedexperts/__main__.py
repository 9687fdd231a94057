"""`python -m fedexperts`, and so `torchrun -m fedexperts`."""

from fedexperts.cli import main

main()
