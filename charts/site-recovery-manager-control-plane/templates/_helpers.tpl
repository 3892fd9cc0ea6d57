{{- define "site-recovery.selector" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: manager-control-plane
{{- end }}

{{- define "site-recovery.labels" -}}
{{ include "site-recovery.selector" . }}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/part-of: site-recovery
siterecovery.trilio.io/zone: {{ required "zone.name: name the ProtectionZone that this control plane serves" .Values.zone.name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
