# SPDX-License-Identifier: MIT
# fish completion for holdfast(1)

# The names of held locks. Asked only of a store on this machine: completion must not hang on a network.
function __holdfast_names
    set -l url file:
    set -q HOLDFAST_URL; and set url $HOLDFAST_URL
    set -l words (commandline -opc)
    for i in (seq 2 (count $words))
        if contains -- $words[$i] -u --url; and test $i -lt (count $words)
            set url $words[(math $i + 1)]
        end
    end
    string match -q 'file:*' -- $url; or return
    holdfast -u $url ls 2>/dev/null | string replace -r '\s.*' '' | tail -n +2
end

function __holdfast_schemes
    holdfast engines 2>/dev/null | string replace -rf '^[a-z]+ \(([^)]*)\): .*' '$1' | string split ' '
end

set -l commands run ls status break engines bench
set -l none "not __fish_seen_subcommand_from $commands"

complete -c holdfast -f
complete -c holdfast -n $none -s u -l url -x -a '(__holdfast_schemes)' -d 'Where the lock is kept'
complete -c holdfast -n $none -l version -d 'Print the version'
complete -c holdfast -l help -d 'Print help'
complete -c holdfast -n $none -a run -d 'Run a command while holding a lock'
complete -c holdfast -n $none -a ls -d 'List the locks that are held'
complete -c holdfast -n $none -a status -d 'Show one lock'
complete -c holdfast -n $none -a break -d 'Take a lock away from its holder'
complete -c holdfast -n $none -a engines -d 'List what can keep locks'
complete -c holdfast -n $none -a bench -d 'Measure a store'

complete -c holdfast -n '__fish_seen_subcommand_from run' -s n -l nonblock -d 'Do not wait'
complete -c holdfast -n '__fish_seen_subcommand_from run' -s w -l wait -x -d 'Wait no longer than this'
complete -c holdfast -n '__fish_seen_subcommand_from run' -s t -l ttl -x -d 'Time-to-live of the lock'
complete -c holdfast -n '__fish_seen_subcommand_from run' -s E -l conflict-exit-code -x -d 'Exit code if not acquired'
complete -c holdfast -n '__fish_seen_subcommand_from run' -l no-renew -d 'End the lock after its time-to-live'
complete -c holdfast -n '__fish_seen_subcommand_from run' -l max-hold -x -d 'End the lock after this long'
complete -c holdfast -n '__fish_seen_subcommand_from run' -l on-lost -x -a 'term kill ignore' -d 'What to do with the command'
complete -c holdfast -n '__fish_seen_subcommand_from run' -l grace -x -d 'Time between SIGTERM and SIGKILL'
complete -c holdfast -n '__fish_seen_subcommand_from run' -l note -x -d 'Shown by ls'
complete -c holdfast -n '__fish_seen_subcommand_from run' -a '(__holdfast_names)' -d Lock
complete -c holdfast -n '__fish_seen_subcommand_from run' -a '(__fish_complete_command)'

complete -c holdfast -n '__fish_seen_subcommand_from ls status break' -a '(__holdfast_names)' -d Lock
complete -c holdfast -n '__fish_seen_subcommand_from ls status engines bench' -l json -d 'Print JSON'
complete -c holdfast -n '__fish_seen_subcommand_from bench' -l mode -x -a 'pair throughput contend handoff' -d 'What to measure'
complete -c holdfast -n '__fish_seen_subcommand_from bench' -l workers -x -d 'How many at once'
complete -c holdfast -n '__fish_seen_subcommand_from bench' -l procs -d 'Processes instead of threads'
complete -c holdfast -n '__fish_seen_subcommand_from bench' -l seconds -x -d 'How long'
