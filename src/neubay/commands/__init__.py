"""One file per group of commands: each function parses nothing and computes nothing itself; its
signature is the command line (read by tyro), its body calls the rooms and prints."""
