{{/* The chart's words. Names are fixed: one release in a namespace, so that people and cells know where to look. */}}

{{- define "cellwise.labels" -}}
app.kubernetes.io/name: cellwise
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "cellwise.selector" -}}
app.kubernetes.io/name: cellwise
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* An image by digest where there is one, else by tag, which is the chart's version where there is none. */}}
{{- define "cellwise.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "cellwise.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "cellwise.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .user | int64 }}
runAsGroup: {{ .user | int64 }}
fsGroup: {{ .user | int64 }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "cellwise.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* A name server's answer that is lost, as on a node that starts hundreds of pods, costs one second and not five. */}}
{{- define "cellwise.dns" -}}
dnsConfig:
  options:
    - {name: timeout, value: "1"}
    - {name: attempts, value: "5"}
{{- end }}

{{/* What every pod of ours in the release's namespace has in common. */}}
{{- define "cellwise.pod" -}}
{{ include "cellwise.pullSecrets" .root }}
enableServiceLinks: false
{{ include "cellwise.dns" .root }}
securityContext: {{- include "cellwise.podSecurity" (dict "user" .user) | nindent 2 }}
{{- with .root.Values.control.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.control.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.control.priorityClass }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "cellwise.storeSecret" -}}
{{- if .Values.postgresql.inside -}}
cellwise-postgresql
{{- else -}}
{{ required "postgresql.inside is false: name the Secret with the database's URL in store.secret" .Values.store.secret }}
{{- end }}
{{- end }}

{{- define "cellwise.storeEnv" -}}
- name: CELLWISE_STORE
  valueFrom:
    secretKeyRef:
      name: {{ include "cellwise.storeSecret" . }}
      key: {{ if .Values.postgresql.inside }}url{{ else }}{{ .Values.store.key }}{{ end }}
{{- end }}

{{- define "cellwise.phoenixUrl" -}}
{{- if .Values.phoenix.inside -}}
http://cellwise-phoenix.{{ .Release.Namespace }}.svc:6006
{{- else -}}
{{ required "phoenix.inside is false: give phoenix.url, or turn publisher.enabled off" .Values.phoenix.url }}
{{- end }}
{{- end }}

{{/* The way to the store, where it is not the network alone. */}}
{{- define "cellwise.cloudSqlProxy" -}}
{{- with .Values.cloudSqlProxy }}
{{- if .enabled }}
- name: cloud-sql-proxy
  image: {{ include "cellwise.image" (dict "image" .image "root" $) }}
  imagePullPolicy: {{ $.Values.images.pullPolicy }}
  restartPolicy: Always
  args:
    - --structured-logs
    - --address=127.0.0.1
    - --port=5432
    - --health-check
    - --http-address=0.0.0.0
    - --http-port=9801
    - --max-sigterm-delay=60s
    {{- if .privateIp }}
    - --private-ip
    {{- end }}
    {{- if .iamAuthentication }}
    - --auto-iam-authn
    {{- end }}
    - {{ required "cloudSqlProxy.enabled is true: give cloudSqlProxy.instance, project:region:instance" .instance | quote }}
  ports:
    - {name: proxy-health, containerPort: 9801}
  startupProbe:
    httpGet: {path: /startup, port: proxy-health}
    periodSeconds: 1
    failureThreshold: 60
    timeoutSeconds: 5
  resources: {{- toYaml .resources | nindent 4 }}
  securityContext: {{- include "cellwise.containerSecurity" $ | nindent 4 }}
{{- end }}
{{- end }}
{{- end }}

{{/* The tables are brought up to date before anything opens the store; several at once follow each other. */}}
{{- define "cellwise.migrations" -}}
{{- include "cellwise.cloudSqlProxy" . }}
{{- include "cellwise.liveCode" . }}
- name: migrations
  image: {{ include "cellwise.image" (dict "image" .Values.images.control "root" .) }}
  imagePullPolicy: {{ .Values.images.pullPolicy }}
  command: [cellwise, migrate, --wait, "240"]
  env:
    {{- include "cellwise.storeEnv" . | nindent 4 }}
    {{- include "cellwise.liveCodeEnv" . | nindent 4 }}
  resources:
    requests: {cpu: 50m, memory: 128Mi}
    limits: {memory: 512Mi}
  securityContext: {{- include "cellwise.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    {{- include "cellwise.liveCodeMount" . | nindent 4 }}
{{- end }}

{{/* development.liveCode: the image's code copied to a volume, which the container's user may change, and run from there. */}}
{{- define "cellwise.liveCode" -}}
{{- if .Values.development.liveCode }}
- name: code
  image: {{ include "cellwise.image" (dict "image" .Values.images.control "root" .) }}
  imagePullPolicy: {{ .Values.images.pullPolicy }}
  command: [python, -c]
  args:
    - |
      import shutil, grading, k8s, simulator
      for package in (grading, k8s, simulator):
          shutil.copytree(package.__path__[0], f"/code/{package.__name__}", dirs_exist_ok=True)
  resources:
    requests: {cpu: 50m, memory: 32Mi}
    limits: {memory: 128Mi}
  securityContext: {{- include "cellwise.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: code, mountPath: /code}
{{- end }}
{{- end }}

{{- define "cellwise.liveCodeEnv" -}}
{{- if .Values.development.liveCode }}
- {name: PYTHONPATH, value: /code}
{{- end }}
{{- end }}

{{/* Begins what follows again whenever it ends: with its code changed, and without the cluster's growing pauses. */}}
{{- define "cellwise.liveCodeLoop" -}}
{{- if .Values.development.liveCode }}
- sh
- -c
- 'trap "kill \$! ; exit 0" TERM; while :; do "$@" & echo $! > /tmp/process; wait $!; sleep 0.2; done'
- cellwise
{{- end }}
{{- end }}

{{- define "cellwise.liveCodeMount" -}}
{{- if .Values.development.liveCode }}
- {name: code, mountPath: /code}
{{- end }}
{{- end }}

{{- define "cellwise.liveCodeVolume" -}}
{{- if .Values.development.liveCode }}
- name: code
  emptyDir: {sizeLimit: 64Mi}
{{- end }}
{{- end }}

{{/* Probes of a process that serves /healthz and /readyz on the port named `health`. */}}
{{- define "cellwise.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 2
  failureThreshold: 60
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 10
  failureThreshold: 6
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 3
  failureThreshold: 3
  timeoutSeconds: 5
{{- end }}

{{/* Quantities are text to the settings, whatever YAML made of `cpu: 1`. */}}
{{- define "cellwise.quantities" -}}
{{- $found := dict }}
{{- range $kind, $amounts := . }}
{{- $texts := dict }}
{{- range $name, $amount := $amounts }}
{{- $_ := set $texts $name (toString $amount) }}
{{- end }}
{{- $_ := set $found $kind $texts }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{/* What the controller and intake read: k8s/settings.py. */}}
{{- define "cellwise.settings" -}}
version: 1
namespace: {{ .Release.Namespace | quote }}
cells_namespace: {{ .Values.cells.namespace | quote }}
intake_url: http://cellwise-intake.{{ .Release.Namespace }}.svc:8080
trial_image: {{ include "cellwise.image" (dict "image" .Values.images.trial "root" .) | quote }}
image_pull_policy: {{ .Values.images.pullPolicy }}
cells_service_account: cellwise-cells
lease_name: cellwise-controller
jobs_in_flight: {{ .Values.controller.jobsInFlight | int64 }}
provider_limits: {{ .Values.controller.providerLimits | toJson }}
cell:
  resources: {{ include "cellwise.quantities" .Values.cells.resources }}
  agent_resources: {{ include "cellwise.quantities" .Values.cells.agentResources }}
  node_selector: {{ .Values.cells.nodeSelector | toJson }}
  tolerations: {{ .Values.cells.tolerations | toJson }}
  active_deadline_seconds: {{ .Values.cells.activeDeadlineSeconds | int64 }}
  priority_class: {{ .Values.cells.priorityClass | default nil | toJson }}
  run_as_user: {{ .Values.cells.runAsUser | int64 }}
  pod_labels: {{ .Values.cells.podLabels | toJson }}
  tmp_size: {{ .Values.cells.tmpSize }}
  agent_env_secret: {{ .Values.cells.agentEnvSecret | default nil | toJson }}
queue: {{ .Values.controller.queue | default nil | toJson }}
stuck_terminating_seconds: {{ .Values.controller.stuckTerminatingSeconds | int64 }}
refused_seconds: {{ .Values.controller.refusedSeconds | int64 }}
recorded_job_seconds: {{ .Values.controller.recordedJobSeconds | int64 }}
job_ttl_seconds: {{ .Values.controller.jobTtlSeconds | int64 }}
reconcile_seconds: {{ .Values.controller.reconcileSeconds }}
people_audience: cellwise-people
cells_audience: cellwise-cells
{{- end }}
