{{/* The pod of gateways and workers. Each takes the root, a component, and its values. */}}

{{/* Of every pod: no root, no token, and nothing beyond what is mounted. Takes a uid. */}}
{{- define "sluice.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ . }}
  runAsGroup: {{ . }}
  fsGroup: {{ . }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "sluice.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* The variables that were made before it, and the data to work on. */}}
{{- define "sluice.initContainers" -}}
{{- $v := .root.Values -}}
# A Secret is mounted readable by the pod's group; a root secret is for its user alone.
- name: root-secret
  image: {{ include "sluice.image" .root }}
  imagePullPolicy: {{ $v.image.pullPolicy }}
  command: [install, -D, -m, "0600", /run/sluice-root/root, /var/lib/sluice/data/secrets/root]
  {{- include "sluice.containerSecurity" . | nindent 2 }}
  resources: {{ include "sluice.smallResources" . | nindent 4 }}
  volumeMounts:
    - {name: data, mountPath: /var/lib/sluice}
    - {name: root-secret, mountPath: /run/sluice-root, readOnly: true}
{{- if $v.postgresql.enabled }}
# Here the owner's login is, and not beside what serves. Pods that start together migrate once.
- name: schema
  image: {{ include "sluice.image" .root }}
  imagePullPolicy: {{ $v.image.pullPolicy }}
  args: [db, upgrade]
  {{- include "sluice.containerSecurity" . | nindent 2 }}
  env:
    {{- include "sluice.databaseEnv" .root | nindent 4 }}
    {{- include "sluice.ownerEnv" .root | nindent 4 }}
  resources: {{ include "sluice.smallResources" . | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
{{- end }}
{{- with $v.modelFiles.s3 }}
{{- if .path }}
- name: models
  image: {{ .image }}
  args: [copy, --checksum, --transfers=8, --config=/tmp/rclone.conf, "store:{{ .path }}", /models]
  {{- include "sluice.containerSecurity" $ | nindent 2 }}
  env:
    - name: HOME
      value: /tmp
    - name: RCLONE_CONFIG_STORE_TYPE
      value: s3
    - name: RCLONE_CONFIG_STORE_PROVIDER
      value: {{ .provider | quote }}
    - name: RCLONE_CONFIG_STORE_ENV_AUTH
      value: "true"
    {{- with .endpoint }}
    - name: RCLONE_CONFIG_STORE_ENDPOINT
      value: {{ . | quote }}
    {{- end }}
    {{- with .region }}
    - name: RCLONE_CONFIG_STORE_REGION
      value: {{ . | quote }}
    {{- end }}
    {{- with .existingSecret }}
    - name: AWS_ACCESS_KEY_ID
      valueFrom: {secretKeyRef: {name: {{ . }}, key: access-key-id}}
    - name: AWS_SECRET_ACCESS_KEY
      valueFrom: {secretKeyRef: {name: {{ . }}, key: secret-access-key}}
    {{- end }}
  resources: {{ include "sluice.smallResources" . | nindent 4 }}
  volumeMounts:
    - {name: models, mountPath: /models}
    - {name: tmp, mountPath: /tmp}
{{- end }}
{{- end }}
{{- if and $v.compileOperators (not $v.gpu.enabled) }}
# For this node's processor. Without them torch computes alone, so a failure stops nothing.
- name: operators
  image: {{ include "sluice.image" .root }}
  imagePullPolicy: {{ $v.image.pullPolicy }}
  command: [sh, -c, "python -m engine.native build || true"]
  {{- include "sluice.containerSecurity" . | nindent 2 }}
  env:
    - name: XDG_CACHE_HOME
      value: /var/lib/sluice/cache
  resources:
    requests: {cpu: "1", memory: 2Gi}
    limits: {memory: 2Gi}
  volumeMounts:
    - {name: data, mountPath: /var/lib/sluice}
    - {name: tmp, mountPath: /tmp}
{{- end }}
{{- end -}}

{{- define "sluice.smallResources" -}}
requests: {cpu: 100m, memory: 256Mi}
limits: {memory: 512Mi}
{{- end -}}

{{/* Takes a path, and as above; a worker has the admin port alone. */}}
{{- define "sluice.probe" -}}
httpGet:
  path: {{ .path }}
  port: {{ ternary "admin" "http" (eq .component "worker") }}
  {{- if and .root.Values.tls.existingSecret (ne .component "worker") }}
  scheme: HTTPS
  {{- end }}
{{- end -}}

{{- define "sluice.pod" -}}
{{- $v := .root.Values -}}
{{- $worker := eq .component "worker" -}}
metadata:
  labels:
    {{- include "sluice.labels" . | nindent 4 }}
  annotations:
    checksum/settings: {{ include "sluice.env" . | sha256sum }}
    {{- with $v.database.url }}
    checksum/database: {{ sha256sum . }}
    {{- end }}
    {{- with $v.redis.url }}
    checksum/redis: {{ sha256sum . }}
    {{- end }}
    {{- with .values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "sluice.fullname" .root }}
  {{- include "sluice.podSecurity" 10001 | nindent 2 }}
  # Longer than the drain, so that nothing is cut off that the drain would have ended.
  terminationGracePeriodSeconds: {{ add (ceil $v.drain.graceS) 10 }}
  {{- with $v.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with .values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- if and $v.gpu.enabled $v.gpu.runtimeClassName }}
  runtimeClassName: {{ $v.gpu.runtimeClassName }}
  {{- end }}
  {{- with .values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .values.affinity }}
  affinity: {{- toYaml .values.affinity | nindent 4 }}
  {{- else }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "sluice.selector" . | nindent 10 }}
  {{- end }}
  initContainers:
    {{- include "sluice.initContainers" . | nindent 4 }}
  containers:
    - name: sluice
      image: {{ include "sluice.image" .root }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      # What a cluster keeps of the output is to have no secret of a first start.
      args: [{{ ternary "worker" "serve" $worker }}, --banner, none]
      {{- include "sluice.containerSecurity" . | nindent 6 }}
      env:
        {{- include "sluice.env" . | nindent 8 }}
      ports:
        {{- if not $worker }}
        - {name: http, containerPort: 8000}
        {{- end }}
        - {name: admin, containerPort: 8001}
      startupProbe:
        {{- include "sluice.probe" (merge (dict "path" "/startupz") .) | nindent 8 }}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: {{ div (add (int $v.startTimeoutS) 1) 2 }}
      livenessProbe:
        {{- include "sluice.probe" (merge (dict "path" "/livez") .) | nindent 8 }}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      # More often than the drain waits for balancers, so that they learn of it in time.
      readinessProbe:
        {{- include "sluice.probe" (merge (dict "path" "/readyz") .) | nindent 8 }}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 1
      resources:
        {{- $resources := deepCopy .values.resources }}
        {{- if $v.gpu.enabled }}
        {{- $resources = mergeOverwrite $resources (dict "limits" (dict $v.gpu.resource 1)) }}
        {{- end }}
        {{- toYaml $resources | nindent 8 }}
      volumeMounts:
        - {name: data, mountPath: /var/lib/sluice}
        - {name: tmp, mountPath: /tmp}
        {{- if or $v.modelFiles.existingClaim $v.modelFiles.s3.path }}
        - name: models
          mountPath: /models
          readOnly: true
          {{- with $v.modelFiles.subPath }}
          subPath: {{ . }}
          {{- end }}
        {{- end }}
        {{- if $v.files.existingClaim }}
        - {name: files, mountPath: /var/lib/sluice-files}
        {{- end }}
        {{- if and $v.tls.existingSecret (not $worker) }}
        - {name: tls, mountPath: /run/sluice-tls, readOnly: true}
        {{- end }}
  volumes:
    {{- if or $worker (not .values.persistence.enabled) }}
    - name: data
      emptyDir: {sizeLimit: {{ .values.dataSize }}}
    {{- end }}
    - name: tmp
      emptyDir: {sizeLimit: 1Gi}
    - name: root-secret
      secret: {secretName: {{ include "sluice.rootSecretName" .root }}, defaultMode: 0440}
    {{- if $v.modelFiles.existingClaim }}
    - name: models
      persistentVolumeClaim: {claimName: {{ $v.modelFiles.existingClaim }}, readOnly: true}
    {{- else if $v.modelFiles.s3.path }}
    - name: models
      emptyDir: {sizeLimit: {{ $v.modelFiles.s3.size }}}
    {{- end }}
    {{- if $v.files.existingClaim }}
    - name: files
      persistentVolumeClaim: {claimName: {{ $v.files.existingClaim }}}
    {{- end }}
    {{- if and $v.tls.existingSecret (not $worker) }}
    - name: tls
      secret: {secretName: {{ $v.tls.existingSecret }}, defaultMode: 0440}
    {{- end }}
{{- end -}}
