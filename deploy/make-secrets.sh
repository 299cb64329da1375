#!/bin/sh
# Writes .env and secrets/ for compose.yaml, next to it, with random passwords. What exists is kept.
set -eu
cd "$(dirname "$0")"
umask 077

random() { # begins with a letter: the server of NATS would read digits as a number
  printf 'p%s' "$(od -An -tx1 -N24 /dev/urandom | tr -d ' \n')"
}

if [ ! -e .env ]; then
  {
    for name in NATS_ETUDE_PASSWORD NATS_WORKER_PASSWORD NATS_AGENT_PASSWORD NATS_READER_PASSWORD \
      CLICKHOUSE_PASSWORD S3_ACCESS_KEY S3_SECRET_KEY; do
      printf '%s=%s\n' "$name" "$(random)"
    done
  } >.env
fi
. ./.env

mkdir -p secrets
# Containers run as other users, so the files are readable; the folder is not.
keep() {
  [ -e "secrets/$1" ] || printf '%s' "$2" >"secrets/$1"
  chmod 644 "secrets/$1"
}
keep grafana_password "$(random)"
keep metrics_key 'a key of the role release: etude keys create --role release'
keep chat_url 'https://example.invalid/the-webhook-of-your-chat'
keep page_key 'the-routing-key-of-your-pager'
keep s3_config "{\"identities\": [{\"name\": \"etude\", \"credentials\": [{\"accessKey\": \"$S3_ACCESS_KEY\", \
\"secretKey\": \"$S3_SECRET_KEY\"}], \"actions\": [\"Admin\", \"Read\", \"Write\", \"List\"]}]}"
echo 'wrote .env and secrets/: put the addresses of your chat and pager into secrets/chat_url and secrets/page_key'
