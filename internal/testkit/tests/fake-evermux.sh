#!/bin/sh
# A stand-in for the binary with just enough behaviour to test the harness itself.
case "$1" in
daemon)
    mkdir -p "$EVERMUX_STATE_DIR"
    echo $$ >"$EVERMUX_STATE_DIR/pid"
    exec sleep 1000
    ;;
status)
    pid=$(cat "$EVERMUX_STATE_DIR/pid" 2>/dev/null) || pid=
    if [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; then
        printf '{"daemon":{"pid":%s,"phase":"serving"}}\n' "$pid"
    else
        printf '{"daemon":null}\n'
        exit 3
    fi
    ;;
env)
    env
    ;;
leave)
    # A detached process that the command leaves behind.
    sleep 1000 </dev/null >/dev/null 2>&1 &
    ;;
hold)
    # The same, holding on to stdout.
    sleep 1000 </dev/null 2>/dev/null &
    ;;
connect)
    echo "hello from $2" >&2
    while read -r line; do
        case "$line" in
        *'"id":1,'*) printf '%s\n' '{"jsonrpc":"2.0","id":1,"result":{"big":1e400}}' ;;
        *wrong-id*) printf '%s\n' '{"jsonrpc":"2.0","id":1.0,"result":{}}' ;;
        *twice*) printf '%s\n%s\n' '{"jsonrpc":"2.0","id":"t","result":{}}' '{"jsonrpc":"2.0","id":"t","result":{}}' ;;
        *noise*) echo 'Listening ...' ;;
        *torn*) printf '{"jsonrpc":"2.0"'; exit 7 ;;
        *notify*) printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/x","params":{"a":1}}' ;;
        *ask*) printf '%s\n' '{"jsonrpc":"2.0","id":"a1","method":"elicitation/create"}' ;;
        *'"id":"a1"'*) printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/answered"}' ;;
        esac
    done
    exit 4
    ;;
esac
