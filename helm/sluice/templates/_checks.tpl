{{/* What values can be wrong together; a schema sees each by itself. */}}

{{- define "sluice.check" -}}
{{- $v := .Values -}}
{{- $several := or $v.worker.enabled $v.autoscaling.enabled (gt (int $v.gateway.replicas) 1) -}}
{{- if and $several (not $v.files.existingClaim) (not $v.files.s3) -}}
{{- fail "more than one pod shares tenants' files: set files.existingClaim to a claim that all can write to, or files.s3" -}}
{{- end -}}
{{- if and $v.files.existingClaim $v.files.s3 -}}
{{- fail "files are at one place: files.existingClaim or files.s3" -}}
{{- end -}}
{{- if and $v.modelFiles.existingClaim $v.modelFiles.s3.path -}}
{{- fail "models come from one place: modelFiles.existingClaim or modelFiles.s3.path" -}}
{{- end -}}
{{- range $v.models -}}
{{- if and (ne .directory "demo") (not $v.modelFiles.existingClaim) (not $v.modelFiles.s3.path) -}}
{{- fail (printf "the model directory %s has to come from somewhere: set modelFiles.existingClaim or modelFiles.s3.path" .directory) -}}
{{- end -}}
{{- end -}}
{{- if and (not $v.postgresql.enabled) (not $v.database.url) (not $v.database.existingSecret) -}}
{{- fail "without postgresql.enabled there must be database.url or database.existingSecret" -}}
{{- end -}}
{{- if and $v.postgresql.enabled (or $v.database.url $v.database.existingSecret) -}}
{{- fail "there is one database: set postgresql.enabled to false, or leave database alone" -}}
{{- end -}}
{{- if and $v.database.existingSecret (or $v.database.url $v.database.ownerUrl) -}}
{{- fail "the database's URLs are in database.existingSecret or in database.url and .ownerUrl, not in both" -}}
{{- end -}}
{{- if and (not $v.valkey.enabled) (not $v.redis.url) (not $v.redis.existingSecret) -}}
{{- fail "without valkey.enabled there must be redis.url or redis.existingSecret" -}}
{{- end -}}
{{- if and $v.valkey.enabled (or $v.redis.url $v.redis.existingSecret) -}}
{{- fail "there is one Redis: set valkey.enabled to false, or leave redis alone" -}}
{{- end -}}
{{- if and $v.redis.existingSecret $v.redis.url -}}
{{- fail "the Redis's URL is in redis.existingSecret or in redis.url, not in both" -}}
{{- end -}}
{{- if and (or $v.worker.enabled $v.monitoring.serviceMonitor.enabled) (not $v.networkPolicy.enabled) (not $v.admin.allowPlain) -}}
{{- fail "scrapers, and the kubelet at workers, reach the admin port, which is plain HTTP and opens everything: set networkPolicy.enabled, or admin.allowPlain where something else keeps others away" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (not (and $v.monitoring.rules.enabled $v.monitoring.serviceMonitor.enabled)) -}}
{{- fail "autoscaling reads what monitoring.rules records of what monitoring.serviceMonitor scrapes: enable both" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.host) -}}
{{- fail "ingress.enabled needs an ingress.host" -}}
{{- end -}}
{{- end -}}
