# SPDX-License-Identifier: MIT
# The completion for zsh, on a terminal.
. "$HERE/lib.sh"
completions=$(cd "$HERE/../../completions" && pwd)

hold_for_completion
types zsh "$completions/_holdfast"
hold_no_more
# Without a lock there is nothing to insert.
printf '%s\n' 'holdfast status ' 'holdfast|status' >cases
expect 0 python3 "$HERE/complete.py" zsh "$completions/_holdfast" <cases
