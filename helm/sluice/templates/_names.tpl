{{/* Names and labels of objects. Those of a component have its name behind the release's. */}}

{{- define "sluice.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels by which pods are found: they never change. Takes the root and a component. */}}
{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "sluice.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (printf "%s%s" .Chart.AppVersion (ternary "-cuda" "" .Values.gpu.enabled)) }}
{{- end -}}
{{- end -}}

{{- define "sluice.rootSecretName" -}}
{{- .Values.rootSecret.existingSecret | default (printf "%s-root" (include "sluice.fullname" .)) -}}
{{- end -}}

{{/* The Secret with `database-url`, and the one with `database-owner-url`. */}}
{{- define "sluice.databaseSecretName" -}}
{{- .Values.database.existingSecret | default (printf "%s-stores" (include "sluice.fullname" .)) -}}
{{- end -}}
{{- define "sluice.ownerSecretName" -}}
{{- .Values.database.existingSecret | default (printf "%s-owner" (include "sluice.fullname" .)) -}}
{{- end -}}
{{- define "sluice.redisSecretName" -}}
{{- .Values.redis.existingSecret | default (printf "%s-stores" (include "sluice.fullname" .)) -}}
{{- end -}}

{{/* Whether the admin port is to be reached over the pods' network: by scrapers, or the kubelet. */}}
{{- define "sluice.adminIsReached" -}}
{{- if or .root.Values.monitoring.serviceMonitor.enabled (eq .component "worker") -}}true{{- end -}}
{{- end -}}

{{/* Labels of the stores' pods: another name, as what selects Sluice's pods must not find these. */}}
{{- define "sluice.storeSelector" -}}
app.kubernetes.io/name: sluice-{{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}
