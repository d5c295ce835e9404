#!/usr/bin/env bash
# A worker in bash with curl, and nothing else that a plain Debian lacks, over the HTTP API:
#   HOLDFAST_URL=http://127.0.0.1:8080 HOLDFAST_TOKEN=hf_… HOLDFAST_QUEUE=default ./worker.sh
set -um # m: what runs in the background has a process group of its own, which can be ended as a whole
url=${HOLDFAST_URL:-http://127.0.0.1:8080} queue=${HOLDFAST_QUEUE:-default} lease=${HOLDFAST_LEASE:-30} grace=${HOLDFAST_GRACE:-10} limit=0
files=$(mktemp -d) jobs=() && trap '[[ $BASHPID == $$ ]] && rm -rf "$files" && kill -- "${jobs[@]/#/-}" 2>/dev/null' EXIT
trap 'touch "$files/stop"; while sleep $grace && kill -0 $$; do echo released >"$files/end"; kill -- "-$(<"$files/run")"; done 2>&- & jobs+=($!)' TERM INT
# One function a task type: JSON on stdin and stdout; a failed attempt has another exit code than 0, and stderr as its message.
task_bash.greet() { printf '"hello %s"' "$(text name)"; }
task_bash.fail() { echo 'this "never" works' >&2; return 3; }
task_bash.nap() { sleep "$(member seconds)" && printf '"rested"'; }
# Prints a member of the JSON object on stdin, as it is written there; `text` prints one without its quotes, still escaped.
member() {
  awk -v want="\"$1\"" 'BEGIN { RS = "\001" } { for (i = 1; i <= length($0); i++) { c = substr($0, i, 1)
    if (c == "\"") { at = i; while (++i <= length($0) && (c = substr($0, i, 1)) != "\"") i += c == "\\"; last = substr($0, at, i - at + 1); continue }
    depth += (c == "{" || c == "[") - (c == "}" || c == "]")
    if ((c == "," && depth == 1 || depth == 0) && key == want) { print substr($0, from, i - from); exit }
    if (c == ":" && depth == 1) { key = last; from = i + 1 } } }'
}
text() { local value; value=$(member "$1") && value=${value#*\"} && printf %s "${value%\"*}"; }
types=$(compgen -A function task_ | sed 's/task_\(.*\)/"\1"/' | paste -sd,)
# Prints the answer; 1: the claim is lost, 2: refused. Made again until there is one: every call may be repeated.
call() { # path, body
  local answer body=$2 pause; for ((pause = 1; ; pause = pause < 8 ? 2 * pause : 8)); do # the token on a pipe: all see arguments
    answer=$(printf %s "$body" | curl -sS --max-time 30 --write-out '\n%{http_code}' --data-binary @- -H 'Content-Type: application/json' \
      -H @<(printf 'Authorization: Bearer %s' "${HOLDFAST_TOKEN:-}") "${url%/}/v1/$1") || answer=$'\n000'
    case $1:${answer##*$'\n'} in
      *:2??) printf %s "${answer%$'\n'*}"; return 0 ;;
      tasks/*:40[49]) return 1 ;;
      *:429 | *:5?? | *:000) [[ $1 == reserve && -e $files/stop ]] && return; ((limit && SECONDS >= limit)) && return 1 ;;
      *) printf '%s\n' "${answer%$'\n'*}" >&2; return 2 ;;
    esac
    body=${body/,\"fresh\":true/}; sleep "$pause.$((RANDOM % 10))"; kill -0 $$ || exit # the worker has exited
  done
}
keep() { # task_id, token, run: extends the claim while the run goes on, ends the run if the claim is lost or cancelled
  local held end='' sent=$SECONDS; while [[ ! $end ]] && sleep "$(awk "BEGIN { print $lease / 3 }")"; do
    limit=$((sent + ${lease%.*})) sent=$SECONDS # without an answer by then, the claim is as good as lost
    held=$(call "tasks/$1/extend" "{\"token\":\"$2\",\"lease\":$lease}") || end=lost
    [[ $held == *'"cancel_requested":true'* ]] && end=cancelled
  done
  echo "$end" >"$files/end"; kill -- "-$3"
}
settle() { # task_id, token
  local result=$(<"$files/result") why
  [[ -e $files/done ]] && call "tasks/$1/ack" "{\"token\":\"$2\",\"result\":${result:-null}}" && return
  why=$(head -c 2000 "$files/error" | iconv -c -f UTF-8 -t UTF-8 | tr '\000-\037' ' ' | sed 's/[\\"]/\\&/g')
  case $(cat "$files/end" 2>/dev/null) in lost) ;;
    released) call "tasks/$1/release" "{\"token\":\"$2\"}" ;;
    cancelled) call settle "{\"changes\":[{\"event\":\"stop\",\"task_id\":\"$1\",\"token\":\"$2\"}]}" ;;
    *) call "tasks/$1/fail" "{\"token\":\"$2\",\"error\":{\"type\":\"bash\",\"message\":\"$why\"}}" ;;
  esac
}
# The exit code of a pid, whatever signals we get meanwhile, since they end a wait.
finish() { local code; until wait "$1"; code=$?; ((code <= 128)) || ! kill -0 "$1"; do :; done 2>/dev/null; return $code; }
me=$HOSTNAME:$$-bash serves="\"queues\":[\"$queue\"],\"types\":[$types]"
asks="{\"worker_id\":\"$me\",$serves,\"lease\":$lease,\"wait\":5"
while kill -0 $$ && call "workers/$me/announce" "{$serves,\"ttl\":60}"; do sleep 20; done >/dev/null 2>&1 & jobs+=($!)
while rm -f "$files"/{done,end}; [[ ! -e $files/stop ]]; do
  call reserve "$asks,\"claim_id\":\"$(od -An -N16 -tx1 /dev/urandom | tr -d ' ')\",\"fresh\":true}" >"$files/reserved" &
  finish $! || (($? > 128)) || exit 1
  task=$(<"$files/reserved"); [[ $task =~ \"task_id\":\"([0-9a-f]+)\",\"token\":\"([^\"]+)\",\"type\":\"([^\"]+)\" ]] || continue
  id=${BASH_REMATCH[1]} token=${BASH_REMATCH[2]} type=${BASH_REMATCH[3]} given=$(member arguments <<<"${task#*\"tasks\":[}")
  ("task_$type" <<<"$given" >"$files/result" 2>"$files/error" && touch "$files/done") & run=$!; echo $run >"$files/run"
  keep "$id" "$token" $run & keeper=$!
  finish $run; kill -- -$keeper 2>/dev/null; finish $keeper; settle "$id" "$token" >/dev/null
done
