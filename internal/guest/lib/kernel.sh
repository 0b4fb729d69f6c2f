# The shell of a context: it reads the cells that the guest lays out in a
# directory of the context, one after another, and says how each ended.
#
# Descriptor 4 gives a line for each cell, its number and its file's name, 5
# takes "=<number> <exit code>". What runs here between cells is kept out of
# traces of the user's own (set -x).

__workbench_dir=$1
shift

__workbench_next() {
    __workbench_number=
    until IFS=' ' read -r -u 4 __workbench_number __workbench_name; do
        (($? > 128)) || return 1 # an interrupt that came late is not the end
    done
    [[ $__workbench_name ]] || __workbench_name=cell-$__workbench_number.sh
    __workbench_busy=1
}

__workbench_over() {
    __workbench_status=$?
    __workbench_busy=
    if [[ ${__workbench_aborted-} ]]; then
        __workbench_aborted=
        __workbench_status=130
        trap - DEBUG
        set +T
        shopt -u extdebug
        __workbench_catch # bash forgets that when a trap returns from a wait
    fi
    printf '=%s %s\n' "$__workbench_number" "$__workbench_status" >&5
}

# The first thing of every cell: its calls have a token of their own, and it sees
# how the cell before ended.
__workbench_begin() {
    export WORKBENCH_TOKEN=$1
    case $- in *e*) return 0 ;; esac
    return "$__workbench_status"
}

__workbench_last() { return "$1"; }

# An interrupt ends the command that runs and then every function and file that
# it was in, up to the cell. A cell may set a trap of its own, which stays.
__workbench_interrupted() {
    [[ ${__workbench_busy-} ]] || return 0
    __workbench_aborted=1
    shopt -s extdebug
    set -T
    trap '[[ ${#BASH_SOURCE[@]} -le 1 || ${FUNCNAME[0]} == __workbench_over || $BASH_COMMAND == "return 130"* ]] || __workbench_last 2' DEBUG
}

__workbench_catch() { trap '__workbench_interrupted; return 130 2>/dev/null' INT; }

__workbench_catch
__workbench_status=0
printf 'began\n' >&5
exec 6</dev/null 7>/dev/null
while { __workbench_next; } 2>&7; do
    . "$__workbench_dir/$__workbench_name" <&6 4<&- 5>&- 6<&- 7>&-
    { __workbench_over; } 2>&7
done
