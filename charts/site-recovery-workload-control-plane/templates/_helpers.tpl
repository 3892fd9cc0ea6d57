{{- define "site-recovery.selector" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: workload-control-plane
{{- end }}

{{- define "site-recovery.agent.selector" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: drbd-node-agent
{{- end }}

{{- define "site-recovery.common" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/part-of: site-recovery
siterecovery.trilio.io/zone: {{ required "zone.name: name the ProtectionZone that this cluster belongs to" .Values.zone.name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "site-recovery.labels" -}}
{{ include "site-recovery.selector" . }}
{{ include "site-recovery.common" . }}
{{- end }}

{{- define "site-recovery.agent.labels" -}}
{{ include "site-recovery.agent.selector" . }}
{{ include "site-recovery.common" . }}
{{- end }}

{{- define "site-recovery.agent.name" -}}
{{ .Release.Name }}-site-recovery-workload-control-plane-agent
{{- end }}
