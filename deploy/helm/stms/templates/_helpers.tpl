{{/* Name of everything: the release, with "stms" in it. */}}
{{- define "stms.name" -}}
{{- ternary .Release.Name (printf "%s-stms" .Release.Name) (contains "stms" .Release.Name) | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{/* Labels by which pods are selected. root: the chart. component: api, worker or migration. */}}
{{- define "stms.selector" -}}
app.kubernetes.io/name: stms
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "stms.labels" -}}
{{ include "stms.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "stms.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end }}

{{/* What every container has: image, no rights, and a root that cannot be written to. */}}
{{- define "stms.container" -}}
image: {{ include "stms.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
{{- end }}

{{/* What every pod has. Links to services would set STMS_PORT, which is a setting. */}}
{{- define "stms.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- with .Values.userId }}
  runAsUser: {{ int64 . }}
  runAsGroup: {{ int64 . }}
  fsGroup: {{ int64 . }}
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* The command that ends when the database has the schema of this program. */}}
{{- define "stms.schema" -}}
name: schema
{{ include "stms.container" . }}
args: [db, current, --wait, {{ .Values.migration.podWaitSeconds | quote }}]
env:
  - {name: STMS_SECRETS_DIR, value: /secrets}
resources: {{- toYaml .Values.migration.resources | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: secrets, mountPath: /secrets, readOnly: true}
{{- end }}

{{/* Volume of secrets, each a file. root: the chart. names: of values below `secrets`; those without a name are left out. */}}
{{- define "stms.secrets" -}}
{{- $files := dict "databaseUrl" "STMS_DATABASE_URL" "firstKey" "first.key" "remoteTeacherTokens" "STMS_REMOTE_TEACHER_TOKENS" "blobsSecret" "STMS_BLOBS_SECRET" -}}
name: secrets
projected:
  # STMS refuses secrets that other users can read.
  defaultMode: 0400
  sources:
    {{- range $name := .names }}
    {{- with index $.root.Values.secrets $name }}
    {{- if .name }}
    - secret: {name: {{ .name }}, items: [{key: {{ .key }}, path: {{ index $files $name }}}]}
    {{- end }}
    {{- end }}
    {{- end }}
{{- end }}

{{/* Spreads the pods of a component over nodes and zones. */}}
{{- define "stms.spread" -}}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "stms.selector" $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
  {{- end }}
{{- end }}

{{/* Where pods may run. The argument: the values of the component. */}}
{{- define "stms.nodes" -}}
{{- with .nodeSelector -}}
nodeSelector: {{- toYaml . | nindent 2 }}
{{ end }}
{{- with .tolerations -}}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Settings that both components have. */}}
{{- define "stms.settings" -}}
STMS_DATA_DIR: /data/stms
STMS_SECRETS_DIR: /secrets
{{- end }}

{{/* GiB as bytes. */}}
{{- define "stms.bytes" -}}
{{- mul . 1073741824 -}}
{{- end }}

{{- define "stms.apiSettings" -}}
{{ include "stms.settings" . }}
STMS_FIRST_KEY_FILE: /secrets/first.key
STMS_HOST: {{ .Values.api.host | quote }}
STMS_PORT: "8000"
STMS_API_PROCESSES: {{ .Values.api.processes | quote }}
{{- with .Values.api.grpcPort }}
STMS_GRPC_PORT: {{ . | quote }}
{{- end }}
STMS_DRAIN_SECONDS: {{ .Values.api.drainSeconds | quote }}
STMS_DRAIN_LISTEN_SECONDS: {{ .Values.api.drainListenSeconds | quote }}
STMS_CACHE_DISK_BYTES: {{ include "stms.bytes" .Values.api.cacheGiB | quote }}
{{- range list "STMS_MAX_INFLIGHT_UPLOAD_BYTES" "STMS_MAX_UPLOAD_BYTES" "STMS_MAX_HEAD_BYTES" "STMS_MAX_BUNDLE_BYTES" }}
{{ . }}: {{ include "stms.bytes" $.Values.api.uploadGiB | quote }}
{{- end }}
{{- end }}

{{- define "stms.workerSettings" -}}
{{ include "stms.settings" . }}
STMS_WORKER_CONCURRENCY: {{ .Values.worker.concurrency | quote }}
STMS_SOLVER_THREADS: {{ .Values.worker.solverThreads | quote }}
STMS_CACHE_DISK_BYTES: {{ include "stms.bytes" .Values.worker.cacheGiB | quote }}
{{- end }}

{{/* All settings of a component. root: the chart. component: api or worker. */}}
{{- define "stms.allSettings" -}}
{{- $own := include (printf "stms.%sSettings" .component) .root | fromYaml -}}
{{- merge $own (index .root.Values .component).settings .root.Values.settings | toYaml -}}
{{- end }}
