# SPDX-License-Identifier: MIT
# The completion for zsh, on a terminal.
. "$HERE/lib.sh"
completions=$(cd "$HERE/../../completions" && pwd)

hold_for_completion
types zsh "$completions/_holdfast"
hold_no_more
# Without a lock there is nothing to insert.
typed zsh "$completions/_holdfast" 'holdfast status ' holdfast status
