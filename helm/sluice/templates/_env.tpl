{{/* The environment of gateways and workers. */}}

{{/* A value as a variable has it: whole numbers without an exponent, lists by commas. */}}
{{- define "sluice.text" -}}
{{- if kindIs "float64" . -}}
{{- if eq (floor .) . -}}{{ printf "%.0f" . }}{{- else -}}{{ . }}{{- end -}}
{{- else if kindIs "slice" . -}}
{{- $parts := list -}}
{{- range . -}}{{- $parts = append $parts (include "sluice.text" .) -}}{{- end -}}
{{- join "," $parts -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* The tables of models, with their directories where they are mounted. */}}
{{- define "sluice.models" -}}
{{- $tables := list -}}
{{- range .Values.models -}}
{{- $directory := ternary .directory (printf "/models/%s" .directory) (eq .directory "demo") -}}
{{- $tables = append $tables (merge (dict "directory" $directory) .) -}}
{{- end -}}
{{- toJson $tables -}}
{{- end -}}

{{/* What an S3 client in Python finds by itself. Takes endpoint, region and a Secret's name. */}}
{{- define "sluice.awsEnv" -}}
{{- with .endpoint }}
- name: AWS_ENDPOINT_URL
  value: {{ . | quote }}
{{- end }}
{{- with .region }}
- name: AWS_DEFAULT_REGION
  value: {{ . | quote }}
{{- end }}
{{- with .existingSecret }}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ . }}, key: access-key-id}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ . }}, key: secret-access-key}}
{{- end }}
{{- end -}}

{{- define "sluice.databaseEnv" -}}
- name: SLUICE_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "sluice.databaseSecretName" . }}
      key: database-url
{{- end -}}

{{/* The owner's login: of what migrates, and of nothing that serves. */}}
{{- define "sluice.ownerEnv" -}}
- name: SLUICE_DATABASE_OWNER_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "sluice.ownerSecretName" . }}
      key: database-owner-url
      optional: true
{{- end -}}

{{/* Takes the root and a component. */}}
{{- define "sluice.env" -}}
{{- $v := .root.Values -}}
{{- $worker := eq .component "worker" -}}
- name: SLUICE_DATA_DIR
  value: /var/lib/sluice/data
- name: XDG_CACHE_HOME
  value: /var/lib/sluice/cache
- name: TRITON_CACHE_DIR
  value: /var/lib/sluice/cache/triton
{{- if not $worker }}
- name: SLUICE_HOST
  value: "0.0.0.0"
- name: SLUICE_PORT
  value: "8000"
{{- end }}
- name: SLUICE_ADMIN_PORT
  value: "8001"
{{- if include "sluice.adminIsReached" . }}
- name: SLUICE_ADMIN_HOST
  value: "0.0.0.0"
- name: SLUICE_ADMIN_ALLOW_PLAIN
  value: "true"
{{- end }}
{{- if and $v.monitoring.serviceMonitor.enabled (not $v.monitoring.serviceMonitor.tokenSecret) }}
- name: SLUICE_METRICS_PUBLIC
  value: "true"
{{- end }}
- name: SLUICE_DRAIN_ACCEPT_S
  value: {{ include "sluice.text" $v.drain.acceptS | quote }}
- name: SLUICE_SHUTDOWN_GRACE_S
  value: {{ include "sluice.text" $v.drain.graceS | quote }}
{{ include "sluice.databaseEnv" .root }}
- name: SLUICE_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "sluice.redisSecretName" .root }}
      key: redis-url
{{- if $v.files.s3 }}
- name: SLUICE_FILE_STORAGE
  value: {{ $v.files.s3 | quote }}
{{- include "sluice.awsEnv" $v.files }}
{{- else if $v.files.existingClaim }}
- name: SLUICE_FILE_STORAGE
  value: /var/lib/sluice-files
{{- end }}
{{- if $v.models }}
- name: SLUICE_MODELS
  value: {{ include "sluice.models" .root | quote }}
{{- end }}
{{- if and $v.gpu.enabled (not (hasKey $v.settings "engine")) }}
- name: SLUICE_ENGINE
  value: gpu
{{- end }}
{{- if not $worker }}
- name: SLUICE_BATCH_WORKER
  value: {{ $v.gateway.runsBatches | quote }}
{{- if $v.tls.existingSecret }}
- name: SLUICE_TLS_CERT
  value: /run/sluice-tls/tls.crt
- name: SLUICE_TLS_KEY
  value: /run/sluice-tls/tls.key
{{- end }}
{{- end }}
- name: SLUICE_INIT_ORGANISATION
  value: {{ $v.firstStart.organisation | quote }}
# A comma alone is none; an empty variable would be as if there were no such.
- name: SLUICE_INIT_TENANTS
  value: {{ join "," $v.firstStart.tenants | default "," | quote }}
{{- with $v.firstStart.existingSecret }}
- name: SLUICE_INIT_KEYS
  valueFrom: {secretKeyRef: {name: {{ . }}, key: keys, optional: true}}
- name: SLUICE_INIT_ADMIN_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . }}, key: admin-token, optional: true}}
{{- end }}
{{- with $v.monitoring.otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- range $name, $value := $v.settings }}
- name: SLUICE_{{ upper $name }}
  value: {{ include "sluice.text" $value | quote }}
{{- end }}
{{- with $v.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
