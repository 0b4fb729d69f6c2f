package api

// historyDescriptions are those of commits, trees and comparisons.
var historyDescriptions = map[string]string{
	"additions": "lines that came", "deletions": "lines that went", "binary": "it is not UTF-8 text: sizes and digests tell the difference",
	"diff": "a patch of this path as git writes it, of text and links; git refuses one that leaves contents out", "entry": "what is at the path now; absent where nothing is",
	"forkedFrom": "what the session was forked from", "modifiedAt": "when it was last modified", "old": "what it was; absent where there was nothing", "new": "what it is; absent where there is nothing",
	"parent": "the commit before it; absent on the first", "pathBase64": "the path's bytes, where they are not UTF-8", "restoredFrom": "the commit whose tree a rollback or a fork took",
	"root": "digest of the tree: the same files make the same one", "run": "the run", "runs": "runs that were active since the parent", "targetBase64": "the target's bytes, where they are not UTF-8",

	"Commit.bytes": "bytes of the files", "Commit.exclusive": "no code but that of its runs changed the workspace since the parent", "Commit.files": "regular files", "Commit.number": "order within the session, from 1",
	"Comparison.exclusive": "nothing but the runs changed the workspace meanwhile", "Comparison.from": "the earlier commit; absent where it is the empty workspace before the first", "Comparison.runs": "runs whose changes these are, as far as it is known",
	"Comparison.to": "the later commit", "Comparison.total": "paths that differ", "FileDiff.truncated": "text of more than 1 MiB, which is not compared line by line",
	"Lineage.commit": "the commit it began with", "Lineage.run": "the run that was named", "Lineage.session": "the session it was forked from",
	"TreeEntry.path": "exact path as text; one U+FFFD for each byte that belongs to no character", "TreeEntry.sha256": "digest of a file's contents, in hex; absent in a live view", "TreeEntry.target": "of a link; never resolved",
	"WorkspaceChange.commit": "the session's last commit, with the change in it",
}
