{{- define "site-recovery.selector" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: protectionzone-controller
{{- end }}

{{- define "site-recovery.labels" -}}
{{ include "site-recovery.selector" . }}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/part-of: site-recovery
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
