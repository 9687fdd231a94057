"""The same methods over a network: a server and sites that are processes of their own, and peers that trade experts."""
