package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Media types that OCI's indexes and manifests share with Docker's.
const (
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
)

const (
	maxDocument = 8 << 20 // bytes of an index or a manifest
	maxNesting  = 4       // indexes within indexes
	maxLayers   = 512
)

// layerBlob is one layer of an image in a layout.
type layerBlob struct {
	file   string // name in the layout
	digest string // SHA-256 of the file, hex; "" in docker save archives without one
	size   int64  // -1 if not stated
}

// findLayers returns the layers, lowest first, of the one image in a layout, or
// of the one for this machine's architecture. Error: image_invalid.
func findLayers(blobs *os.Root) ([]layerBlob, error) {
	var index v1.Index
	err := readDocument(blobs, v1.ImageIndexFile, "", &index)
	if err == nil {
		return layersOfIndex(blobs, index, 0)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return layersOfDockerSave(blobs)
}

// readDocument reads a JSON file of a layout and checks its digest, if given.
// The error wraps fs.ErrNotExist if there is no such file.
func readDocument(blobs *os.Root, name, digest string, into any) error {
	if _, err := blobs.Stat(name); err != nil {
		return invalid("the image layout has no %.200q", name).
			WithHint("import a tar archive of a root file system, an OCI image layout, or a docker save archive").Caused(err)
	}
	f, err := openBlob(blobs, name)
	if err != nil {
		return err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxDocument+1))
	if err != nil {
		return diskError("read the image layout", err)
	}
	if len(raw) > maxDocument {
		return invalid("%.200q in the image layout is too long", name)
	}
	if sum := sha256.Sum256(raw); digest != "" && hex.EncodeToString(sum[:]) != digest {
		return invalid("%.200q in the image layout does not have its digest", name)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return invalid("%.200q in the image layout is not JSON of its kind", name).Caused(err)
	}
	return nil
}

// blobOf is where a layout keeps what a descriptor names.
func blobOf(d v1.Descriptor) (layerBlob, error) {
	digest, ok := strings.CutPrefix(string(d.Digest), "sha256:")
	if !ok || len(digest) != sha256.Size*2 || !isHex(digest) {
		return layerBlob{}, invalid("a digest in the image layout is not a SHA-256")
	}
	return layerBlob{file: path.Join(v1.ImageBlobsDir, "sha256", digest), digest: digest, size: d.Size}, nil
}

func layersOfIndex(blobs *os.Root, index v1.Index, depth int) ([]layerBlob, error) {
	if depth > maxNesting {
		return nil, invalid("the image layout nests indexes too deeply")
	}
	chosen, err := choose(index.Manifests)
	if err != nil {
		return nil, err
	}
	at, err := blobOf(chosen)
	if err != nil {
		return nil, err
	}
	if chosen.MediaType == v1.MediaTypeImageIndex || chosen.MediaType == dockerList {
		var inner v1.Index
		if err := readDocument(blobs, at.file, at.digest, &inner); err != nil {
			return nil, err
		}
		return layersOfIndex(blobs, inner, depth+1)
	}
	var manifest v1.Manifest
	if err := readDocument(blobs, at.file, at.digest, &manifest); err != nil {
		return nil, err
	}
	if len(manifest.Layers) == 0 || len(manifest.Layers) > maxLayers {
		return nil, invalid("the image has %d layers; 1 to %d are possible", len(manifest.Layers), maxLayers)
	}
	layers := make([]layerBlob, 0, len(manifest.Layers))
	for _, d := range manifest.Layers {
		l, err := blobOf(d)
		if err != nil {
			return nil, err
		}
		layers = append(layers, l)
	}
	return layers, nil
}

// choose picks the one image of an index, or the one for this machine.
func choose(all []v1.Descriptor) (v1.Descriptor, error) {
	var fitting []v1.Descriptor
	for _, d := range all {
		switch d.MediaType {
		case v1.MediaTypeImageManifest, dockerManifest, v1.MediaTypeImageIndex, dockerList:
		default:
			continue
		}
		if p := d.Platform; p != nil && (p.OS != "linux" || p.Architecture != runtime.GOARCH) {
			continue // attestations have the platform unknown/unknown
		}
		fitting = append(fitting, d)
	}
	switch len(fitting) {
	case 1:
		return fitting[0], nil
	case 0:
		return v1.Descriptor{}, invalid("the layout has no image for linux/%s", runtime.GOARCH).
			WithHint("export the image for this machine's architecture")
	}
	return v1.Descriptor{}, invalid("the layout has %d images for linux/%s", len(fitting), runtime.GOARCH).
		WithHint("export one image alone")
}

// layersOfDockerSave reads the manifest.json of older docker save archives.
func layersOfDockerSave(blobs *os.Root) ([]layerBlob, error) {
	var saved []struct{ Layers []string }
	if err := readDocument(blobs, "manifest.json", "", &saved); err != nil {
		return nil, err
	}
	if len(saved) != 1 {
		return nil, invalid("the archive has %d images", len(saved)).WithHint("save one image alone")
	}
	if n := len(saved[0].Layers); n == 0 || n > maxLayers {
		return nil, invalid("the image has %d layers; 1 to %d are possible", n, maxLayers)
	}
	layers := make([]layerBlob, 0, len(saved[0].Layers))
	for _, name := range saved[0].Layers {
		clean, err := cleanName(name)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layerBlob{file: clean, size: -1})
	}
	return layers, nil
}

// apply unpacks the layer and then checks that the file was what the manifest
// names. The new root is thrown away if it was not.
func (l layerBlob) apply(ctx context.Context, blobs *os.Root, u *unpacker) error {
	f, err := openBlob(blobs, l.file)
	if err != nil {
		return err
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && l.size >= 0 && st.Size() != l.size {
		return invalid("a layer has another size than the image states")
	}
	sum := sha256.New()
	raw := io.TeeReader(f, sum)
	r, end, err := decompress(raw)
	if err != nil {
		return err
	}
	defer end()
	if err := u.layer(ctx, r, true); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, raw); err != nil {
		return diskError("read a layer", err)
	}
	if l.digest != "" && hex.EncodeToString(sum.Sum(nil)) != l.digest {
		return invalid("a layer does not have the digest that the image states").
			WithHint("export or copy the image again")
	}
	return nil
}
