"""Fields of samples from annotations: COCO, YOLO, VOC, folders of masks, and columns of manifests.

In: annotation files, and the images that they are of. Out: sources whose samples have fields. Must not know: shards.
"""
