# SPDX-License-Identifier: MIT
# bash completion for holdfast(1)

# The names of held locks, or with --done of those whose work is done, one per line. Asked only of a store on this
# machine: completion must not hang on a network.
_holdfast_names()
{
    local url=()
    [[ -z $1 ]] || url=(-u "$1")
    [[ $(holdfast "${url[@]}" engines --url 2>/dev/null) == 'url '*' file:'* ]] || return
    holdfast "${url[@]}" ls $2 --names 2>/dev/null
}

# Puts those that match into COMPREPLY. A name may contain blanks and quotes, so it is offered as it has to be typed:
# escaped or, after an opening quote, as that wants it.
_holdfast_offer_names()
{
    local name typed single="'\\''"
    while IFS= read -r name; do
        case $current in
        \'*) typed=\'${name//\'/$single} ;;
        \"*) typed=\"$(sed 's/[\\"$`]/\\&/g' <<<"$name") ;;
        *) printf -v typed %q "$name" ;;
        esac
        [[ $typed != "$current"* ]] || COMPREPLY+=("${typed#[\'\"]}")
    done < <(_holdfast_names "$url" $1)
}

_holdfast_offer()
{
    COMPREPLY=($(compgen -W "$1" -- "$current"))
}

_holdfast_schemes()
{
    holdfast engines 2>/dev/null | sed -n 's/^[a-z]* (\([^)]*\)): .*/\1/p'
}

_holdfast()
{
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local commands='run hold ls status break forget guard engines doctor bench verify help'
    local lock='-n --nonblock -w --wait --timeout -t --ttl -E --conflict-exit-code -q --quiet --no-renew --max-hold'
    lock+=' --note --verbose --log --on-lost-exec'
    local command= url= name= word i
    COMPREPLY=()

    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case $word in
        -u | --url)
            [[ $word == --url && $command == engines ]] && continue
            # A ':' parts words, so a URL may be several of them: "-u" "file" ":" "///dir".
            url=${COMP_WORDS[++i]}
            while ((i + 2 < COMP_CWORD)) && [[ ${COMP_WORDS[i + 1]} == : ]]; do
                url+=:${COMP_WORDS[i + 2]}
                ((i += 2))
            done
            url=${url//[\'\"]/}
            ;;
        -w | -t | -E | -c | --wait | --timeout | --ttl | --conflict-exit-code | --command | --max-hold | --on-lost | \
            --grace | --once-per | --hold-at-least | --note | --log | --on-lost-exec | --reach | --mode | --workers | \
            --seconds) ((i++)) ;;
        -*) ;;
        *)
            if [[ -z $command ]]; then
                command=$word
            elif [[ $command == run && -n $name ]]; then
                # What follows NAME is a command with a completion of its own.
                if declare -F _command_offset >/dev/null; then
                    _command_offset "$i"
                else
                    COMPREPLY=($(compgen -f -- "$current"))
                fi
                return
            else
                name=$word
            fi
            ;;
        esac
    done

    case $previous in
    -u) word=$(_holdfast_schemes) ;;
    --url) [[ $command == engines ]] && word=- || word=$(_holdfast_schemes) ;;
    --reach) word='processes machines' ;;
    --on-lost) word='term kill ignore' ;;
    --log)
        COMPREPLY=($(compgen -W 'syslog journal' -A file -- "$current"))
        return
        ;;
    --mode) word='pair throughput contend handoff' ;;
    -w | --wait | --timeout | -t | --ttl | --max-hold | --grace | --once-per | --hold-at-least)
        word='500ms 2s 30s 5m 1h'
        ;;
    -E | --conflict-exit-code | -c | --command | --note | --on-lost-exec | --workers | --seconds | --during | --prefix) word= ;;
    *) word=- ;;
    esac
    if [[ $word != - && ! ($command == run && -n $name) ]]; then
        _holdfast_offer "$word"
        return
    fi

    if [[ $current == -* && ! ($command == run && -n $name) ]]; then
        word='-u --url --reach --help'
        case $command in
        '') word+=' --json -V --version' ;;
        run) word+=" $lock -c --command --on-lost --grace --once-per --even-if-failed --hold-at-least" ;;
        hold) word+=" $lock" ;;
        ls) word+=' --done --json --names' ;;
        status) word+=' --json -q --quiet' ;;
        engines) word+=' --json' ;;
        doctor) word+=' --ttl --read-only --json' ;;
        bench) word+=' --mode --workers --procs --seconds --json' ;;
        verify) word+=' --seconds --workers --ttl --pause --kill --during --prefix --html --json' ;;
        esac
        _holdfast_offer "$word"
        return
    fi
    case $command in
    '' | help) _holdfast_offer "$commands" ;;
    run)
        if [[ -n $name ]]; then
            COMPREPLY=($(compgen -c -- "$current"))
        else
            _holdfast_offer_names
        fi
        ;;
    hold | ls | status | break) [[ -n $name ]] || _holdfast_offer_names ;;
    forget) [[ -n $name ]] || _holdfast_offer_names --done ;;
    doctor) [[ -n $name ]] || _holdfast_offer "$(_holdfast_schemes)" ;;
    esac
}

complete -F _holdfast holdfast
