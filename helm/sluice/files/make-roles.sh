#!/bin/sh
# Run once, by PostgreSQL's image, in an empty cluster: an owner who migrates, a login that serves
# and owns nothing. It must be executable: the image would read it into its own shell otherwise. The passwords come from the environment, so that no argument shows them.
set -eu
psql --no-psqlrc --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres <<'SQL'
\getenv owner_password OWNER_PASSWORD
\getenv server_password SERVER_PASSWORD
CREATE ROLE sluice_owner LOGIN CREATEROLE PASSWORD :'owner_password';
CREATE ROLE sluice_server LOGIN NOINHERIT PASSWORD :'server_password';
CREATE DATABASE sluice OWNER sluice_owner;
-- Or anybody could make functions and tables of a session's own.
REVOKE ALL ON DATABASE sluice FROM PUBLIC;
GRANT CONNECT ON DATABASE sluice TO sluice_server;
SQL
