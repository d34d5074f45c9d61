#!/bin/sh
# SPDX-License-Identifier: MIT
#
# extract.sh FILE: prints the C example of README.md (its first ```c block) or of a manual page (the literal display
# of its EXAMPLES section that has a main), so that what people copy from there is compiled and run like everything
# else.
set -eu
case $1 in
*.md) awk '/^```/ { if (inside) exit; inside = ($0 == "```c"); next } inside' "$1" ;;
*) awk '/^\.Sh / { examples = ($2 == "EXAMPLES") }
        /^\.Bd -literal/ { inside = examples; next }
        /^\.Ed/ { if (inside) exit }
        inside { gsub(/\\e/, "\\"); gsub(/\\&/, ""); print }' "$1" ;;
esac
