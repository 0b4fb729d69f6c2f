package api

// seriesDescriptions are those of reusable runs and replays, and of usage.
var seriesDescriptions = map[string]string{
	"reusableRun": "whether the run becomes a version that can be run again, and which", "seriesId": "the series", "replayId": "the replay",
	"of": "the version that the run executes: of a replay, or of a run by series", "replay": "the run that a replay repeats",

	"ReusableRun.mode": "auto: a successful run becomes a version; off: it does not", "ReusableRun.state": "pending until the run has ended, then ready or not_reusable; off where the submission wanted none",
	"ReusableRun.reason": "why it is not reusable: not_succeeded, cell, shared_workspace, no_commit, series_gone, not_recorded (by an older server)", "ReusableRun.seriesId": "the series of the version, or the one that it is to continue",
	"ReusableRun.version": "number of the version, from 1", "ReusableRun.replayId": "the replay that the run is of",
	"ReuseRequest.mode": "auto or off", "ReuseRequest.seriesId": "the series whose next version it becomes",

	"Series.project": "the project", "Series.tenant": "the tenant", "Series.user": "whose it is", "Series.session": "the session of its first version", "Series.versions": "the last number given to a version",
	"Series.publishedVersion": "the version that is published; 0: none", "Series.publications": "what was published, newest first; the last 100",
	"Publication.version": "the version published then", "Publication.previousVersion": "the one before it; 0: none", "Publication.rollback": "it had been published before: no replay was needed",
	"Publication.replayId": "the replay that matched", "Publication.by": "the user who published it",

	"SeriesVersion.version": "number, from 1", "SeriesVersion.published": "it is the published one", "SeriesVersion.publishedAt": "when it was first published; it is kept since then",
	"SeriesVersion.manifest": "what the run began with",
	"Manifest.packages":      "sets of packages that it began with, with their locks", "Manifest.size": "size of the sandbox; absent in lists", "Manifest.revision": "the session's configuration that it ran under",
	"Manifest.timeoutMs": "its time limit", "Manifest.codeSha256": "digest of the code; only to who may read contents, and absent in lists", "Manifest.args": "arguments of the program; as the code's digest",
	"Manifest.envNames": "names of environment variables; as the code's digest", "Manifest.stdinSha256": "digest of the standard input; as the code's digest",

	"Replay.version": "the version that is replayed", "Replay.sessionId": "the session that it has for itself", "Replay.tools": "what becomes of tool calls: refuse or recorded", "Replay.project": "the project",
	"Replay.tenant": "the tenant", "Replay.user": "whose it is", "Replay.verdict": "absent until the run has ended; then matches or differs", "Replay.differs": "names of the facts that differ",
	"Replay.judgedAt": "when the verdict was reached", "Replay.facts": "the comparison, to who may read the contents of both runs, while both are there",
	"ReplayOf.runId": "the run that it repeats", "ReplayOf.tools": "what becomes of tool calls",
	"FactPair.name": "status, exitCode, outputs, stdout, stderr, result, bytes or artifacts", "FactPair.original": "of the version's run: a value, or digests", "FactPair.replay": "of the replay's run",
	"FactPair.same": "they are the same", "FactPair.diff": "of text, from the original to the replay, as a unified diff",

	"Usage.group": "id, size or day (UTC); empty where it is of none, such as the run of an upload; absent in a total", "Usage.durationUs": "active sandbox time, in microseconds", "Usage.chargeMicros": "what it costs, in millionths of the rate's currency",
	"Usage.inputTokens": "tokens that language models were given", "Usage.outputTokens": "tokens that they gave", "Usage.retainedBytes": "bytes of files that were retained",
	"UsageReport.groupBy": "what it is summed up by", "UsageReport.since": "as asked for", "UsageReport.until": "as asked for", "UsageReport.total": "of all groups, those of other pages too", "UsageReport.items": "a page of groups, in order of their names",
	"RunEvent.seriesId": "the series that it became a version of", "RunEvent.version": "the version", "PackageSet.runId": "the run that installed it",
}
