"""``python -m stagepost``: the command line, where the script is not on the path."""

from stagepost.cli import main

main(prog_name="stagepost")
